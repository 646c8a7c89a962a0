"""Simulations in one process (backend ``sp``), with our optimisers or FedML's.

May import runs, host and below; :mod:`.runtime` itself imports no FedML.
"""
