"""First import of the process that forks a sweep's runs: Ctrl-C then ends this process silently during imports.

The sweep starts the process with Ctrl-C blocked, because Python would print a traceback. In other processes, this
module changes nothing.
"""

import signal

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
