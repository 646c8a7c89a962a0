"""How does a simulation run in several processes on one machine or many: who starts them, who trains whom?

May import runs, host and below. Used by its name as a backend, ``MPI``.
"""
