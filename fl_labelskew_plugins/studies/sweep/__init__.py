"""Grids of settings: list the runs, find the unfinished ones, and run several at a time.

May import the same packages as studies. ``labelskew sweep`` and ``fl.sweep`` use it.
"""
