"""What does a process share with its machine: files, locks, signals, its place, the lines that people read?

Imports nothing of this package but the hook's way to end. Everybody above uses it.
"""
