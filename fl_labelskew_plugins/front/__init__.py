"""Start, resume and read runs, from the command line or from Python.

May import the runtimes and below. studies, the command line and the package's own ``__init__`` use it.
"""
