"""What a process shares with its machine: files, locks, signals, and the lines that people read.

Imports nothing of this package but its own modules (and the hook's way to end). Everybody above uses it.
"""
