"""Communication between the server and its clients: in one process, over MPI, or between silos.

May import runs, host and below. front selects a runtime by ``comm_args.backend``. Importing a runtime imports FedML,
unlike :mod:`.base`, :mod:`.processes` and the certificates of :mod:`.silo`.
"""
