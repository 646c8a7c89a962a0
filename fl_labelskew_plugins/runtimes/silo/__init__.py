"""How does a federation run whose clients are machines of others: connections, certificates, and what may go wrong?

May import runs, host and below. Used by its name as a backend, ``GRPC``; ``labelskew certs`` uses the certificates.
:mod:`.certs`, :mod:`.issuing` and :mod:`.revocation` need cryptography, so they are imported after ``names.require``.
"""
