"""Trackers that show a run during training; imported only if a recipe names them.

May import params and machine.
"""
