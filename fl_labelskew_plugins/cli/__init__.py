"""What does a command of ``labelskew`` ask for, and how does it end?

May import everything below. The hook uses it, and Ctrl-C ends it in a line from here on, also where the hook is off.
"""

from fl_labelskew_plugins.hook import end_in_a_line

end_in_a_line()
