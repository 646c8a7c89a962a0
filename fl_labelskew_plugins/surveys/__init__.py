"""Label distributions of clients, and suggested methods.

May import runs and below. runtimes, front and the command line use it.
"""
