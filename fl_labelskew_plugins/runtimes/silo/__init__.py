"""Federations whose clients are machines of other owners (backend ``GRPC``): connections, certificates, failures.

May import runs, host and below. ``labelskew certs`` uses the certificates. :mod:`.certs` needs cryptography, so it is
imported only after ``keys.require``.
"""
