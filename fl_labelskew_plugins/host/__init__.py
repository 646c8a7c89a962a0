"""The interface between FedML and this package; importing it imports FedML."""

import warnings

with warnings.catch_warnings():  # users cannot act on warnings of FedML's imports
    warnings.simplefilter("ignore")
    import fedml  # noqa: F401
