"""Simulations in one process (backend ``sp``). Only :mod:`.hosted` imports FedML."""
