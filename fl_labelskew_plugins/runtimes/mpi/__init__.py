"""Simulations in several processes (backend ``MPI``)."""
