"""The display of a run: progress on a terminal, tables before and after it, model card."""
