"""Training: a client's turn, the server's round, the state between rounds, and devices.

May import recipe and below. diagnostics, runs, host and the runtimes use it. Independent of FedML.
"""
