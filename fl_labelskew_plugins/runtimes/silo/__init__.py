"""How does a federation run whose clients are machines of others: connections, certificates, and what may go wrong?

May import runs, host and below. Used by its name as a backend, ``GRPC``; ``labelskew certs`` uses the certificates.
:mod:`.certs` needs cryptography, so it is imported after ``keys.require``.
"""
