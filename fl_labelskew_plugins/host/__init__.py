"""How does FedML call us, and what do we use of it? Importing this package imports FedML.

May import runs, engine and below. The runtimes use it where a run has the host; with ``runtimes/sp`` it alone imports
FedML.
"""

import warnings

with warnings.catch_warnings():  # of the host's own imports, about which a user can do nothing
    warnings.simplefilter("ignore")
    import fedml  # noqa: F401
