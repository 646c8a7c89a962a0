"""Trackers, imported only if a recipe names them."""
