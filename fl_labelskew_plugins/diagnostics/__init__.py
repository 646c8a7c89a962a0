"""Plots and tables of the papers other than accuracy.

May import engine and below. Only runs with diagnostics import it.
"""
