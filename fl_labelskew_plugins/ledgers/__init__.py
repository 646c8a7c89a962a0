"""What is written down so that it cannot be denied later: the audit log, and what clients have revealed.

May import recipe, the plugins and the machine. runs, runtimes and the command line use it.
"""
