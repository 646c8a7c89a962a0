"""Communication between server and clients: in one process, over MPI, or between silos.

May import runs, host and below. front selects a runtime by ``comm_args.backend``.
"""
