"""Records that must be complete: the audit log, and the ledger of what clients have revealed.

May import recipe, the plugins and the machine. runs, runtimes and the command line use it.
"""
