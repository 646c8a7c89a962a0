"""Trackers that show a run during training.

May import params and the machine. Found by entry points; neither a tracker nor its package is imported unless a recipe
names it.
"""
