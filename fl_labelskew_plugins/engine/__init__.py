"""Training on clients, aggregation on the server, and devices, without FedML.

May import recipe and below. diagnostics, runs, host and the runtimes use it.
"""
