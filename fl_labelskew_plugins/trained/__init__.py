"""Use of trained models: predict, evaluate, export. Needs only a model's file.

May import runs and below. front and the command line use it.
"""
