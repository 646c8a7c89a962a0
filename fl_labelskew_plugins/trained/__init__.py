"""What is done with a trained model: how is it read, how does it predict, how good is it on further data, where to?

May import runs and below. front and the command line use it. Needs no run's folder, but a model's file.
"""
