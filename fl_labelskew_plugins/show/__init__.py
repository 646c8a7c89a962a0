"""What do people see of a run: its display on a terminal, the tables before and after it, its model card?

May import runs and below. front, studies and the command line use it.
"""
