"""Federations of machines of several owners (backend ``GRPC``).

May import runs, host and below. :mod:`.certs` is imported only after ``keys.require``.
"""
