"""A process's interface to its machine. Imports only the hook; all packages above use it."""
