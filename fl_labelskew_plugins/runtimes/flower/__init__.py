"""Federations on Flower (backend ``Flower``), without FedML. Only this package imports flwr."""
