"""How do the server and its clients reach each other: in one process, over MPI, or from silo to silo?

May import runs, host and below. front chooses one by ``comm_args.backend``. Importing a runtime imports FedML;
:mod:`.base`, :mod:`.processes` and the certificates of :mod:`.silo` do without.
"""
