"""Networks with ``features`` and a linear ``classifier``."""
