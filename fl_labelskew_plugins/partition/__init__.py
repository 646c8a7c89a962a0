"""Partitions: the training and test samples of each client, in pure numpy."""
