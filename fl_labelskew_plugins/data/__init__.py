"""Data sets: search, reading and checks of their files.

May import partition, params and the machine. A recipe chooses one, and ``labelskew data`` checks it.
"""
