"""Methods: changes of local training, of the tensors that clients send, and of the server's use of them.

Each method is pure functions and a thin class. It may import params, ops, seeds and the registry.
Recipes name its entry point.
"""
