"""The commands of ``labelskew``."""

from fl_labelskew_plugins.hook import end_in_a_line

end_in_a_line()  # also if the hook is off
