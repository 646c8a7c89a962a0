"""How does a simulation run in one process, by our optimisers or by FedML's own?

May import runs, host and below. Used by its name as a backend, ``sp``; :mod:`.runtime` itself imports no FedML.
"""
