"""The kinds of plugins that ``labelskew new`` writes packages of; imports nothing heavy, for ``--help``."""

from __future__ import annotations

from fl_labelskew_registry import catalog

KINDS: dict[str, tuple[catalog.Kind, str, str]] = {
    "method": ("methods", "label-skew method", "method_args.method"),
    "partition": ("partitioners", "partition", "partition_args.partition_method"),
    "network": ("models", "network", "model_args.model"),
    "dataset": ("datasets", "data set", "data_args.dataset"),
    "optimizer": ("optimizers", "federated optimiser", "train_args.federated_optimizer"),
}
"""Of each kind the entry-point group, the noun for it, and where a recipe names it."""
