"""Recipes as texts, and the lines that are said of them."""

from pathlib import Path

import pytest

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe import yaml as plain_yaml
from fl_labelskew_plugins.recipe.mistakes import RecipeError

GOOD = {
    "data_args": {"dataset": "digits"},
    "partition_args": {"partition_method": "pcdd", "classes_per_client": 2},
    "model_args": {"model": "mlp"},
    "train_args": {"epochs": 2, "weight_decay": 1e-5},
    "method_args": {"method": "fedmr", "mu1": 0.1},
}
FEDAVG = GOOD | {"method_args": {"method": "fedavg"}}


def text_with(base=GOOD, **sections):
    """A good recipe with some sections changed, by default one of FedMR; None takes a section out."""
    content = {section: dict(keys) for section, keys in base.items()}
    for section, keys in sections.items():
        if isinstance(keys, dict):
            content[section] = content.get(section, {}) | keys
        else:
            content[section] = keys
    return plain_yaml.write(content)


def lines_of(text, *overrides):
    with pytest.raises(RecipeError) as error:
        parse.parse(text, source="r.yaml", overrides=overrides)
    assert all("\n" not in line for line in error.value.mistakes)
    assert str(error.value) == "\n".join(error.value.mistakes)
    return error.value.mistakes


def only_line(text, *overrides):
    (line,) = lines_of(text, *overrides)
    return line


CROSS_SILO = {
    "common_args": {"training_type": "cross_silo"},
    "comm_args": {"backend": "GRPC"},
    "train_args": {"client_num_in_total": 2},
    "client_specific_args": {"data_silo_config": ["one.yaml", "sub/two.yaml"]},
}


def cross_silo(**comm):
    return text_with(**CROSS_SILO | {"comm_args": CROSS_SILO["comm_args"] | comm})


OWN_FILE = {
    "data_args": {"dataset": "digits"},
    "method_args": {"count_noise": 4.0},
    "comm_args": {"send_measures": True},
    "device_args": {"using_gpu": True, "gpu_ids": [0]},
}

SILOS = """\
common_args: {training_type: cross_silo}
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 4}
model_args: {model: mlp, hidden: [16]}
train_args: {client_num_in_total: 3, comm_round: 3, epochs: 2, batch_size: 32, learning_rate: 0.1}
method_args: {method: fedavg}
device_args: {threads: 1}
comm_args: {backend: GRPC, quorum_timeout_s: 60, reconnect_s: 20}
"""
"""A server and three silos."""


NETWORK = """\
from torch import nn


def make_network(input_shape, num_classes, width=16):
    return nn.Sequential(
        nn.Conv2d(input_shape[0], width, 3),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )
"""
"""A file that a recipe may take its network from."""


TABLE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8").split("```yaml\n")[1].split("```")[0]
"""The documented table of recipes."""


def simulation(recipe):
    """The same for one process."""
    return "\n".join(line for line in recipe.splitlines() if not line.startswith(("common_args", "comm_args")))


SKEWED = """\
data_args: {dataset: digits}
partition_args: {partition_method: dirichlet, beta: 0.5}
model_args: {model: mlp, hidden: [8]}
train_args: {client_num_in_total: 4, batch_size: 32, learning_rate: 0.1}
method_args: {method: fedavg}
device_args: {threads: 1}
"""
"""Four clients, for rounds that a test plays itself."""

OVER_MPI = """\
common_args: {random_seed: 3}
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: mlp}
train_args: {client_num_in_total: 6, client_num_per_round: 2, comm_round: 20, epochs: 3, batch_size: 16,
             learning_rate: 0.05, momentum: 0.9}
method_args: {method: map}
device_args: {threads: 1}
comm_args: {backend: MPI}
tracking_args: {checkpoint_every: 2, keep_checkpoints: 1}
"""
"""A run over MPI that takes long enough to be broken off."""

DIGITS = {
    "data_args": {"dataset": "digits"},
    "partition_args": {"partition_method": "pcdd", "classes_per_client": 2},
    "model_args": {"model": "mlp", "hidden": [16]},
    "train_args": {"client_num_in_total": 5, "comm_round": 2, "batch_size": 16, "learning_rate": 0.1},
    "method_args": {"method": "fedavg"},
    "device_args": {"threads": 1},
    "tracking_args": {"checkpoint_every": 1},
}
"""A mapping for runs from Python, of seconds."""
