"""What do the papers plot of a run beside its accuracy?

May import engine and below. A run that asks for none of it imports and computes nothing here.
"""
