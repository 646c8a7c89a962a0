"""The interface between FedML and this package. Importing it imports FedML.

May import runs, engine and below. The runtimes use it in runs with FedML; only this package and ``runtimes/sp`` import
FedML.
"""

import warnings

with warnings.catch_warnings():  # users cannot act on the warnings of FedML's own imports
    warnings.simplefilter("ignore")
    import fedml  # noqa: F401
