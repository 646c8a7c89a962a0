"""Grids of settings: list the runs, find the unfinished ones, and run several at a time.

May import what studies may. ``labelskew sweep`` and ``fl.sweep`` use it.
"""
