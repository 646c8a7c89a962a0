"""Training on clients, aggregation on the server, and devices, without FedML."""
