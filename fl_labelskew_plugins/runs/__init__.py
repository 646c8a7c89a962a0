"""A run: the objects built from its recipe, its rounds, its folder and its trackers."""
