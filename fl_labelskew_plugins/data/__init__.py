"""Which data sets are there, where do their files lie, and are they what they should be?

May import params and the machine. Found by its entry point; the recipe chooses one, and ``labelskew data`` checks it.
"""
