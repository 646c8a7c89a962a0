"""How is a run started, gone on with and looked at, whether from the command line or from Python?

May import the runtimes and below. studies, the command line and the package's own ``__init__`` use it.
"""
