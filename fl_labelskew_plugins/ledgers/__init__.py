"""The audit log, and the privacy ledger. May import recipe and below; runs, runtimes and the command line use it."""
