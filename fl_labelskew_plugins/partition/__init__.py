"""Partitions: the training and test samples of each client.

Pure numpy; partitions may import params, seeds, the machine and the registry, and are found by their entry points.
"""
