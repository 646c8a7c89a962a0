"""What do several runs say together: a table and a page of them, a paper's numbers made again, a grid of settings?

May import front and below. The command line and the package's own ``__init__`` use it.
"""
