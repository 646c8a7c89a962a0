"""Methods: changes of local training, of the tensors that clients send, and of the server's use of them.

The pages in docs/methods have the authors, and the differences from paper and code.
"""
