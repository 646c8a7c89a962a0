"""What is to run: which keys a recipe has, what they may say, what goes with what, and in which words a mistake is told?

May import the plugins (methods, optimizers, partition, models, data) and what is below them. Everything above uses it.
"""
