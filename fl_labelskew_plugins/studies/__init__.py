"""What do several runs say together: a table and a page of them, a paper's numbers made again, a grid of settings?

May import ``run.py``, the runtimes and below. The command line uses it.
"""
