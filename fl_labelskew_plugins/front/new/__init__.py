"""Generate a starting folder for the user's own data or method.

Part of the front. ``labelskew new`` uses it.
"""
