"""Plots and tables of the papers other than accuracy; imported only by runs with diagnostics."""
