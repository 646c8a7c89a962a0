"""Start, resume and read runs, from the command line or from Python."""
