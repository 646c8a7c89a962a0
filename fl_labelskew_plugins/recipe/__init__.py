"""What is to run: which keys a recipe has, what they may say, what goes together, and how is a mistake told?

May import the plugins (methods, optimizers, partition, models, data) and what is below them. Everything above uses it.
"""
