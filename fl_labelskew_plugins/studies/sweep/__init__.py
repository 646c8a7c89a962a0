"""How is a grid of settings run: which runs there are, what is left of them, several at a time?

May import what studies may. ``labelskew sweep`` and ``fl.sweep`` use it.
"""
