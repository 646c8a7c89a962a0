"""Who holds which samples?

Pure numpy: may import params and the registry. Found by its entry point; the recipe chooses one.
"""
