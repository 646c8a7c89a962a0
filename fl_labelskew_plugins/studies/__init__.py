"""Studies of several runs: comparison tables and pages, reproduction of papers' numbers, grids of settings.

May import front and below. The command line and the package's own ``__init__`` use it.
"""
