"""Simulations in several processes (backend ``MPI``). May import runs, host and below."""
