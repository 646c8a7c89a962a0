"""Recipes: keys, values, compatibility and error messages."""
