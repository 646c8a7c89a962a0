"""Simulations in one process (backend ``sp``). May import runs, host and below; only :mod:`.hosted` imports FedML."""
