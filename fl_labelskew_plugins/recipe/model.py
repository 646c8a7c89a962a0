"""A recipe: its sections, in the order in which they are written, and the plugins that they choose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_labelskew_registry import Dataset, Method, Network, Optimizer, Partitioner
from pydantic import ConfigDict

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe import sections, yaml
from fl_labelskew_plugins.recipe.sections import CommArgs, DpArgs, Expected, PluginArgs, Policy, SecurityArgs


class Sections(Params):
    """What a recipe's file says; ``train`` is its section ``train_args``, and so with the others."""

    common: sections.CommonArgs = sections.CommonArgs()
    data: sections.DataArgs
    partition: sections.PartitionArgs = sections.PartitionArgs()
    model: sections.ModelArgs
    train: sections.TrainArgs = sections.TrainArgs()
    method_args: sections.MethodArgs
    validation: sections.ValidationArgs = sections.ValidationArgs()
    device: sections.DeviceArgs = sections.DeviceArgs()
    comm: CommArgs = CommArgs()
    client_specific: sections.ClientSpecificArgs = sections.ClientSpecificArgs()
    tracking: sections.TrackingArgs = sections.TrackingArgs()
    security: SecurityArgs = SecurityArgs()
    dp: DpArgs = DpArgs()
    privacy: sections.PrivacyArgs = sections.PrivacyArgs()


ATTRIBUTES = {f"{name.removesuffix('_args')}_args": name for name in Sections.model_fields}
"""What each section of a file is called in :class:`Sections`."""
_FIELDS: Mapping[str, Any] = Sections.model_fields
SECTIONS: dict[str, type[Params]] = {section: _FIELDS[name].annotation for section, name in ATTRIBUTES.items()}
"""All sections, in the order in which a recipe is written."""
REQUIRED = [section for section, name in ATTRIBUTES.items() if _FIELDS[name].is_required()]
PLUGGED = {section: model for section, model in SECTIONS.items() if issubclass(model, PluginArgs)}
"""Sections whose other keys belong to a plugin."""
EXPECTED = "expected"
"""The part of a recipe that holds :class:`Expected`: one mapping, or a list of them."""
PARTS = (*SECTIONS, EXPECTED)
POLICY = "policy"
OF_SUMS = ("secure_aggregation", "secure_bits", "secure_clip")

SILO: dict[str, tuple[str, ...] | None] = {
    "data_args": None,
    "method_args": None,
    "validation_args": None,
    "device_args": None,
    "comm_args": ("certs", "send_measures", "send_contributions", "audit_digests"),
    "tracking_args": tuple(key for key in sections.TrackingArgs.model_fields if key != "trackers"),  # the server's
    "privacy_args": None,
    POLICY: None,
}
"""Sections of a silo's own file, with the keys that it may set; None: all keys, or those that the method names."""


class Recipe(Sections):
    """One run, with every default filled in and every plugin chosen.

    Args:
        name: stem of the recipe's file.
        path: the recipe's file.
        dataset: the data set, with its parameters.
        partitioner: the partition, with its parameters.
        network: the network's builder, with its parameters.
        optimizer: how the federation optimises, with its parameters.
        method: the method, with its parameters.
        expected: a paper's numbers, to compare the outcome with; no part of what is run.
        policy: what this silo takes part in, from its own file alone; no part of what is run.
        objects: plugins that stand in for names, by section; no file says them.
        hosted: whether FedML runs it; no file says so.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str
    path: Path
    dataset: Dataset
    partitioner: Partitioner
    network: Network
    optimizer: Optimizer
    method: Method
    expected: tuple[Expected, ...] = ()
    policy: Policy | None = None
    objects: Mapping[str, Any] = {}
    hosted: bool = True

    @property
    def method_name(self) -> str:
        """The method's registered name."""
        return self.method_args.method

    @property
    def code(self) -> str | None:
        """The function that makes the network, ``FILE.py:FUNCTION``; None for a registered network or an object."""
        return self.model.model if sections.is_code(self.model.model) and "model_args" not in self.objects else None

    @property
    def network_name(self) -> str:
        """The network's name; of one from a file, without the folder."""
        return os.path.basename(self.model.model)

    @property
    def own_data(self) -> bool:
        """Whether each silo trains on all of a data set of its own, so that nothing is partitioned."""
        return bool(self.client_specific.data_silo_config)

    @property
    def normalisation(self) -> dict[str, Any]:
        """``mean`` and ``std`` as ``data_args`` have them; ``data`` too where the data set knows none."""
        known = {"mean": self.data.mean, "std": self.data.std}
        return {key: "data" if value is None and self.dataset.measured else value for key, value in known.items()}

    @property
    def pools_moments(self) -> bool:
        """Whether samples are normalised by mean and std of all silos' own training data, made from what they send."""
        return self.common.across_silos and self.own_data and "data" in self.normalisation.values()

    @property
    def sums_alone(self) -> bool:
        """Whether a server across silos sees the sum of what they send, and nothing of one of them."""
        return self.common.across_silos and self.comm.secure_aggregation

    def tests(self, begin: int, end: int) -> int:
        """After how many of the rounds from ``begin`` up to, but not including, ``end`` the global model is tested."""
        every, last = self.validation.frequency_of_the_test, self.train.comm_round - 1
        regular = len(range(-(-begin // every) * every, end, every)) if every else 0
        return regular + (begin <= last < end and (not every or last % every > 0))

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Every section and key with its value, as plain YAML values; of the host's own two, the keys in use."""
        content = self.model_dump(mode="json", include={*_FIELDS})
        values: dict[str, dict[str, Any]] = {section: content[name] for section, name in ATTRIBUTES.items()}
        for section, model in PLUGGED.items():
            params = getattr(self, model.attribute).params.model_dump(mode="json", by_alias=True)
            # where a plugin repeats a key of the recipe, the recipe's value is the one in force
            values[section] = {**values[section], **params, **values[section]}
        return values

    def dump(self) -> str:
        """The resolved recipe as YAML text; loading it gives the same recipe."""
        content: dict[str, Any] = {**self.resolved()}
        if self.expected:
            content[EXPECTED] = [number.model_dump(mode="json", exclude_none=True) for number in self.expected]
        return f"# fedml run {clean(self.name)}.yaml\n{yaml.write(content)}"


def of_sums(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Those of a resolved recipe's ``comm_args`` that decide about numbers; none without secure aggregation."""
    comm = recipe.get("comm_args", {})
    return {key: comm[key] for key in OF_SUMS if key in comm} if comm.get(OF_SUMS[0]) else {}


def different(a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``section.key`` of all that differs between two resolved recipes.

    Where results are kept does not count, nor where processes find each other and how long they wait.
    """
    return [
        f"{section}.{key}"
        for section in dict.fromkeys([*a, *b])
        if section != "tracking_args"
        for key in dict.fromkeys([*a.get(section, {}), *b.get(section, {})])
        if section != "comm_args" or key == "backend" or key in {*of_sums(a), *of_sums(b)}
        if (key in a.get(section, {})) != (key in b.get(section, {})) or a[section][key] != b[section][key]
    ]
