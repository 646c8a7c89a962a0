"""How does each method change local training, what clients send and what the server makes of it?

Pure formulas and a thin class each: may import params, ops, seeds and the registry. Found by its entry point; the
recipe chooses one.
"""
