"""Optimisers: corrections of the clients' local steps, and the server's step. Parameters are named as in FedML."""
