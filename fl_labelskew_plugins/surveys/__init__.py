"""Who holds what, how far are clients from each other, and which methods follow from it?

May import runs and below. runtimes, front and the command line use it.
"""
