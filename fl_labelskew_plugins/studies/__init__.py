"""Studies of several runs: comparison tables and pages, reproduction of papers' numbers, grids of settings.

May import front and below. cli and the package's ``__init__`` use it.
"""
