"""What is a run: what is built from its recipe, how its rounds go, what its folder holds and who watches?

May import diagnostics, engine and below. host, the runtimes, front, studies and the command line use it. Knows no
host: where no switch of it is on, :mod:`.simulation` is a whole federation without it.
"""
