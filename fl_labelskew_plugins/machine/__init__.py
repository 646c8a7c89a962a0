"""A process's interface to its machine. Imports only ``hook``."""
