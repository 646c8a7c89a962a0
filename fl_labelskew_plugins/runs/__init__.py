"""What is a run: what is built from its recipe, how its rounds go, what its folder holds and who watches?

May import host, diagnostics, engine and below. The runtimes, ``run.py``, studies and the command line use it.
"""
