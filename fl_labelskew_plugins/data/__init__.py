"""Data sets: search, reading and checks of their files.

May import partition, params and the machine. Recipes choose one.
"""
