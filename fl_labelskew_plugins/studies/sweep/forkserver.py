"""What the process imports first that forks a sweep's runs: Ctrl-C ends it without a word while it imports the rest.

The sweep starts it with Ctrl-C held back, since Python would print a traceback; nowhere else does this change anything.
"""

import signal

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
