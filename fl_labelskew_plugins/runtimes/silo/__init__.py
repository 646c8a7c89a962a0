"""Federations of machines of several owners (backend ``GRPC``). Import :mod:`.certs` only after ``keys.require``."""
