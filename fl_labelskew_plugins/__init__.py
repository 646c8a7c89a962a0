"""Label-skew methods for FedML: FedRS, MAP, FedLC, FedShift, FedMR."""

__version__ = "0.1.0"
