"""The command ``labelskew``, which Ctrl-C ends in a line from here on, also where the hook is switched off."""

from fl_labelskew_plugins.hook import end_in_a_line

end_in_a_line()
