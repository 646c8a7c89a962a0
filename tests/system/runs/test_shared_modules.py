"""Modules that a method adds to the network: trained, averaged, kept in checkpoints, not in the trained model."""

from itertools import islice

import numpy as np
import pytest
import torch
from fl_labelskew_registry import Federation, LabelSkewError
from recipe_texts import DIGITS
from safetensors.torch import load_file
from torch import nn

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.engine.local import with_shared
from fl_labelskew_plugins.methods.fedetf import FedETF

HEADS = {"method": ["moon", "fedproc"], "moon": {"projection": "mlp"}, "fedproc": {"schedule": "constant"}}
RECIPE = DIGITS | {"method_args": HEADS, "train_args": DIGITS["train_args"] | {"comm_round": 3}}
NAMES = [f"model/shared_modules.moon/projection.{layer}" for layer in (0, 2)]


def heads(run):
    """The shared modules of a run's last checkpoint, by name."""
    tensors = load_file(run.folder / "checkpoint" / "latest.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith("model/shared_modules.")}


def test_shared_modules_of_two_methods(tmp_path):
    whole = fl.run(RECIPE, tmp_path / "whole", quiet=True, host="none")
    assert {"loss_terms.moon.contrast", "loss_terms.fedproc.contrast"} <= {*whole.metrics}
    trained = heads(whole)
    assert sorted(trained) == sorted(f"{name}.{kind}" for name in NAMES for kind in ("bias", "weight"))

    assert len(list(islice(fl.simulate(RECIPE, tmp_path / "cut"), 2))) == 2
    before = heads(fl.load_run(tmp_path / "cut"))
    assert all(not torch.equal(before[name], trained[name]) for name in trained)  # the third round trained them
    resumed = fl.load_run(tmp_path / "cut").resume(quiet=True)
    assert all(torch.equal(value, trained[name]) for name, value in heads(resumed).items())
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()

    assert not any("shared_modules" in name for name in load_file(tmp_path / "whole" / "model.safetensors"))
    assert len(whole.predict(np.zeros((2, 1, 8, 8), np.float32))) == 2


def test_a_network_with_a_part_of_that_name_is_refused():
    network = nn.Module()
    network.shared_modules = nn.Identity()
    with pytest.raises(LabelSkewError, match="Module: has an attribute shared_modules"):
        with_shared(network, FedETF(), Federation(2, 2, 1, 1, 3, 4, 10, 5, seed=0), "model")
