"""Training of clients, aggregation on the server, state between rounds, and devices.

May import recipe and below. diagnostics, runs, host and the runtimes use it. Independent of FedML.
"""
