"""Plots and tables of the papers other than accuracy.

May import engine and below. Runs without diagnostics import and compute nothing here.
"""
