"""How is training computed: a client's local training, the mean of uploads, the state between rounds, on which device?

May import recipe and below. host, runs and diagnostics use it. Knows no host.
"""
