"""Studies of several runs: comparison tables and pages, reproduction of papers' numbers, grids of settings."""
