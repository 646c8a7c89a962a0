"""Optimisers: corrections of the clients' local steps, and the server's step.

They may import params, ops and tensors. Parameters that FedML also has are named as in FedML.
"""
