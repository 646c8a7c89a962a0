"""First import of the process that forks a sweep's runs; the sweep starts it with Ctrl-C blocked.

Ctrl-C then ends it without a traceback. In other processes, this module changes nothing.
"""

import signal

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
