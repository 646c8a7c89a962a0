"""Simulations in several processes on one or more machines (backend ``MPI``).

May import runs, host and below.
"""
