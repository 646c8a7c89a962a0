"""Start, resume and read runs, from the command line or from Python.

May import the runtimes and below. studies, cli and the package's ``__init__`` use it.
"""
