"""A run: the objects built from its recipe, its rounds, its folder and its trackers.

May import diagnostics, engine and below. host, the runtimes, front, studies and the command line use it. It imports no
host: unless the recipe uses FedML's own features, :mod:`.simulation` is a complete federation without FedML.
"""
