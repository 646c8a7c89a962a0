"""Methods: changes of local training, of the tensors that clients send, and of the server's use of them.

Each method is pure functions and a thin class, found by its entry point; ``paper`` is its reference. Its page in
docs/methods has the authors, and the differences from paper and code.
"""
