"""A recipe: its sections, and the plugins that they choose."""

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
    """A recipe's sections; ``train`` is ``train_args``, and so on."""

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

    @property
    def host_switches(self) -> list[str]:
        """Keys of FedML's switches that are on."""
        switches = (("security", "enable_attack"), ("security", "enable_defense"), ("dp", "enable_dp"))
        return [f"{section}_args.{key}" for section, key in switches if getattr(getattr(self, section), key)]


ATTRIBUTES = {f"{name.removesuffix('_args')}_args": name for name in Sections.model_fields}
_FIELDS: Mapping[str, Any] = Sections.model_fields
SECTIONS: dict[str, type[Params]] = {section: _FIELDS[name].annotation for section, name in ATTRIBUTES.items()}
REQUIRED = [section for section, name in ATTRIBUTES.items() if _FIELDS[name].is_required()]
PLUGGED = {section: model for section, model in SECTIONS.items() if issubclass(model, PluginArgs)}
EXPECTED = "expected"
PARTS = (*SECTIONS, EXPECTED)
POLICY = "policy"
SECURE_KEYS = ("secure_aggregation", "secure_bits", "secure_clip")

SILO_KEYS: dict[str, tuple[str, ...]] = {
    "data_args": (),
    "method_args": (),
    "validation_args": (),
    "device_args": (),
    "comm_args": ("certs", "send_measures", "send_contributions", "audit_digests"),
    # only the server has trackers
    "tracking_args": tuple(key for key in sections.TrackingArgs.model_fields if key != "trackers"),
    "privacy_args": (),
    POLICY: (),
}
"""Keys of a silo's own file; empty: all of the section; in ``method_args``, those that the method declares."""


class Recipe(Sections):
    """One run, with all defaults filled in and all plugins chosen."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str  # stem of the file
    path: Path
    dataset: Dataset
    partitioner: Partitioner
    network: Network
    optimizer: Optimizer
    method: Method
    expected: tuple[Expected, ...] = ()
    policy: Policy | None = None  # from the silo's own file
    objects: Mapping[str, Any] = {}  # Python objects that replace plugins, by section
    hosted: bool = True  # by FedML

    @property
    def method_name(self) -> str:
        """The method's registered name."""
        return self.method_args.method

    @property
    def methods(self) -> dict[str, Method]:
        """The parts of a combination, or the only method, by name."""
        parts: dict[str, Method] = getattr(self.method, "parts", {self.method_name: self.method})
        return parts

    @property
    def code(self) -> str | None:
        """``FILE.py:FUNCTION`` that builds the network, if any."""
        return self.model.model if sections.is_code(self.model.model) and "model_args" not in self.objects else None

    @property
    def network_name(self) -> str:
        """The network's name, without a folder."""
        return os.path.basename(self.model.model)

    @property
    def own_data(self) -> bool:
        """Whether each silo has its own data set."""
        return bool(self.client_specific.data_silo_config)

    @property
    def normalisation(self) -> dict[str, Any]:
        """``mean`` and ``std`` of ``data_args``, with their defaults."""
        known = {"mean": self.data.mean, "std": self.data.std}
        return {key: "data" if value is None and self.dataset.measured else value for key, value in known.items()}

    @property
    def pools_moments(self) -> bool:
        """Whether silos send sums for a common mean and std."""
        return self.common.across_silos and self.own_data and "data" in self.normalisation.values()

    @property
    def only_sums(self) -> bool:
        """Whether the server of a run across silos sees only sums."""
        return self.common.across_silos and self.comm.secure_aggregation

    def tests(self, round: int) -> bool:
        """Whether the global model is tested after a round; the first is 0."""
        every = self.validation.frequency_of_the_test
        return round == self.train.comm_round - 1 or (every > 0 and round % every == 0)

    def resolved(self) -> dict[str, dict[str, Any]]:
        """All sections and keys; of ``security_args`` and ``dp_args`` only keys in use."""
        content = self.model_dump(mode="json", include={*_FIELDS})
        values: dict[str, dict[str, Any]] = {section: content[name] for section, name in ATTRIBUTES.items()}
        for section, model in PLUGGED.items():
            params = getattr(self, model.attribute).params.model_dump(mode="json", by_alias=True)
            # the section's values have precedence
            values[section] = {**values[section], **params, **values[section]}
        return values

    def dump(self) -> str:
        """The resolved recipe as YAML text."""
        content: dict[str, Any] = {**self.resolved()}
        if self.expected:
            content[EXPECTED] = [number.model_dump(mode="json", exclude_none=True) for number in self.expected]
        return f"# fedml run {clean(self.name)}.yaml\n{yaml.write(content)}"


def of_sums(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``comm_args`` that affect a secure sum's numbers."""
    comm = recipe.get("comm_args", {})
    return {key: comm[key] for key in SECURE_KEYS if key in comm} if comm.get(SECURE_KEYS[0]) else {}


def different(a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Keys with different values in two resolved recipes, except paths, addresses and timeouts."""
    return [
        f"{section}.{key}"
        for section in dict.fromkeys([*a, *b])
        if section != "tracking_args"
        for key in dict.fromkeys([*a.get(section, {}), *b.get(section, {})])
        if section != "comm_args" or key == "backend" or key in {*of_sums(a), *of_sums(b)}
        if (key in a.get(section, {})) != (key in b.get(section, {})) or a[section][key] != b[section][key]
    ]
