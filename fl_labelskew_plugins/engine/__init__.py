"""How is training computed: a client's turn, the server's round, the state between rounds, on which device?

May import recipe and below. diagnostics, runs, host and the runtimes use it. Knows no host.
"""
