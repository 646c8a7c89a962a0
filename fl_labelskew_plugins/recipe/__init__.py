"""Recipes: keys, values, compatibility and error messages.

May import the plugins (methods, optimizers, models, data) and packages below them. All packages above use it.
"""
