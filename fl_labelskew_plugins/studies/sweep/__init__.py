"""Grids of settings; ``labelskew sweep`` and ``fl.sweep`` use them."""
