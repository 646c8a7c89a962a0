"""Partitions: the training and test samples of each client, in pure numpy.

May import params, seeds, the machine and the registry.
"""
