"""Which networks are there, each with features and a linear classifier?

May import params and the machine. Found by its entry point; the recipe chooses one.
"""
