"""Networks with ``features`` and a linear ``classifier``.

They may import params and the machine.
"""
