"""A run: the objects built from its recipe, its rounds, its folder and its trackers.

May import diagnostics, engine and below, but no host. host, the runtimes, front, studies and the command line use it.
"""
