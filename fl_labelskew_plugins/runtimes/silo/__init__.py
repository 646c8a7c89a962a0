"""Federations of machines of several owners (backend ``GRPC``).

May import runs, host and below. :mod:`.certs` needs cryptography, so it is imported only after ``keys.require``.
"""
