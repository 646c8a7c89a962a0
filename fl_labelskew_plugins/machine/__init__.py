"""A process's interface to its machine: files, locks, signals, ranks, log lines.

Of this package it imports only the hook's way to end. All packages above use it.
"""
