"""A process's interface to its machine: files, locks, signals, ranks, log lines. Imports only ``hook``."""
