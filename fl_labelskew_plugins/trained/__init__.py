"""Use of trained models: read files, predict, evaluate on further data, export.

May import runs and below. front and the command line use it. Needs only a model's file, not a run's folder.
"""
