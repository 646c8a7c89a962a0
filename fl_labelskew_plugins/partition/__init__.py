"""Partitions: the training and test samples of each client, in pure numpy.

May import params, seeds and the machine. Data sets and recipes use them.
"""
