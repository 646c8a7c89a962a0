"""To whom is a run shown while it goes on?

May import params and the machine. Found by its entry point; nothing of it, and no package that it shows runs to, is
imported unless a recipe names it.
"""
