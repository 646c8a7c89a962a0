"""How does a simulation run in one process, by our optimisers or by FedML's own?

May import runs, host and below. Used by its name as a backend, ``sp``. Importing it imports FedML.
"""

import fl_labelskew_plugins.host  # noqa: F401  # first, and without the warnings of FedML's own imports
