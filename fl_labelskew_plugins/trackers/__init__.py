"""Trackers, imported only if a recipe names them. May import params and machine."""
