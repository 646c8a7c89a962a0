"""How does a federation optimise: what clients add to their steps, and what step the server takes?

May import params, ops and tensors. Found by its entry point; the recipe chooses one.
"""
