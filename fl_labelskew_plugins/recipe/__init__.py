"""Recipes: keys, values, compatibility and error messages.

May import the plugins (methods, optimizers, partition, models, data) and what is below them. Everything above uses it.
"""
