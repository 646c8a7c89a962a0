"""Label distributions of clients, and suggested methods."""
