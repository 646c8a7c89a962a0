"""The commands of ``labelskew``; after this import, Ctrl-C ends the command with one line, even if the hook is off.

May import everything below. The hook uses it.
"""

from fl_labelskew_plugins.hook import end_in_a_line

end_in_a_line()
