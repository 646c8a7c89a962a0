"""Folders that ``labelskew new`` generates for the user's own data or method."""
