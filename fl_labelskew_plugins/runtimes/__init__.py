"""Runtimes: own wiring of the host's classes. Importing this package imports the host."""

import warnings

with warnings.catch_warnings():  # of the host's own imports, about which a user can do nothing
    warnings.simplefilter("ignore")
    import fedml  # noqa: F401
