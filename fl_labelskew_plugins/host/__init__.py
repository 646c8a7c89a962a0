"""How does FedML call us, and what do we take from it? Importing this room imports FedML.

May import runs, engine and below. The runtimes use it, and with ``runtimes/sp`` it alone imports FedML.
"""

import warnings

with warnings.catch_warnings():  # of the host's own imports, about which a user can do nothing
    warnings.simplefilter("ignore")
    import fedml  # noqa: F401
    from fedml.core.distributed.communication.base_com_manager import BaseCommunicationManager
    from fedml.core.distributed.communication.message import Message
    from fedml.core.distributed.communication.observer import Observer
    from fedml.core.distributed.fedml_comm_manager import FedMLCommManager

__all__ = ["BaseCommunicationManager", "FedMLCommManager", "Message", "Observer"]
