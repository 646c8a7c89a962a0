"""The recipe of a reference run (``train_args.reference``)."""

from __future__ import annotations

from fl_labelskew_registry import mistake

from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.recipe.mistakes import keys_of
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.sections import TrainArgs

KEPT = ("common_args", "data_args", "partition_args", "model_args", "validation_args", "device_args", "tracking_args")
"""Sections that apply to a reference run."""
OF_SERVER = ("federated_optimizer", "proxy_aggregation", "proxy_smoothing")


def plain(recipe: Recipe) -> str:
    """The recipe as YAML text, with FedAvg in one process. Raise LabelSkewError if the data are at the silos."""
    if recipe.own_data:
        problem = "needs all data in one place, but client_specific_args.data_silo_config names the silos' own data"
        raise mistake("train_args.reference", f"{recipe.train.reference} {problem}", "a recipe with a partition")
    everything = recipe.resolved()
    content = {section: dict(everything[section]) for section in KEPT}
    known = keys_of(TrainArgs).keys() - {*OF_SERVER}
    content["train_args"] = {key: value for key, value in everything["train_args"].items() if key in known}
    content["method_args"] = {"method": "fedavg"}
    content["tracking_args"].pop("diagnostics")
    return yaml.write(content)
