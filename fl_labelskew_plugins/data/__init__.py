"""Data sets: search, reading and checks of their files.

May import params and the machine. Found by entry point; the recipe chooses one, and ``labelskew data`` checks it.
"""
