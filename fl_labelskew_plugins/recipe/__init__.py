"""Recipes: keys, values, compatibility and error messages.

May import the plugins and packages below them; all packages above use it.
"""
