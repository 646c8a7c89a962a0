"""A run: the objects built from its recipe, its rounds, its folder and its trackers.

May import diagnostics, engine and below, but no host: :mod:`.simulation` is a complete federation without FedML.
"""
