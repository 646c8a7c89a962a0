"""Recipes: keys, values, compatibility and error messages.

May import the plugins (methods, optimizers, partition, models, data) and packages below them.
"""
