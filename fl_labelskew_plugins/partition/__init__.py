"""Which client holds which samples, and which are test samples?

Pure numpy: may import params, seeds, the machine and the registry. A partition is found by its entry point; the recipe
chooses one.
"""
