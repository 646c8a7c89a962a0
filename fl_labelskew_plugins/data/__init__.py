"""Data sets: search, reading and checks of their files."""
