"""Conversion of a FedML configuration to a recipe: common keys are kept, other keys lead to notes."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl_labelskew_registry import PluginError, catalog

from fl_labelskew_plugins.machine.files import open_regular
from fl_labelskew_plugins.recipe import addresses, parse, yaml
from fl_labelskew_plugins.recipe.mistakes import RecipeError, keys_of, nearest, show, shown
from fl_labelskew_plugins.recipe.model import PLUGGED, SECTIONS
from fl_labelskew_plugins.recipe.sections import HOSTS_TRACKING, WANDB

RENAMED = {"partition_alpha": "partition_args.beta", "gpu_id": "device_args.gpu_ids"}
VALUES = {
    "partition_method": {"hetero": "dirichlet", "homo": "iid"},
    "dataset": {"fed_shakespeare": "shakespeare"},
    "model": {"lr": "logistic", "rnn": "char_lstm"},
    "federated_optimizer": {"FedAvg_seq": "FedAvg", "FedOpt_seq": "FedOpt"},
    "backend": {"MQTT_S3": "GRPC", "MQTT": "GRPC", "TRPC": "GRPC", "NCCL": "MPI", "single_process": "sp"},
}
"""FedML's values, and their names in recipes."""
_CLOUD = "is a setting of FedML's platform; recipes do not use it"
_GPUS = "use device_args.gpu_ids and device_args.workers_per_gpu"
DROPPED = {
    **dict.fromkeys(("using_mlops", "config_version", "mlops_api_key", "mlops_project_name", "mlops_run_name"), _CLOUD),
    **dict.fromkeys(("bootstrap", "mqtt_config_path", "s3_config_path", "model_file_cache_folder"), _CLOUD),
    **dict.fromkeys(("global_model_file_path", "log_server_url"), _CLOUD),
    **dict.fromkeys(("client_id_list", "is_mobile", "run_id", "sys_perf_profiling", "ci"), "is not needed"),
    **dict.fromkeys(("gpu_mapping_file", "gpu_mapping_key", "gpu_util_parse"), _GPUS),
    "grpc_ipconfig_path": "use comm_args.server_address: host:port of the server, rank 0 in this file",
    "worker_num": "is not needed; with backend: MPI, comm_args.workers is the number of processes that train",
    "scenario": "is not needed; each silo is one process, and hierarchical silos are not supported",
}
"""FedML's keys that recipes do not need, and the reasons."""


@dataclass
class Converted:
    """A recipe made from a FedML configuration, with a note for each dropped or changed key."""

    content: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, place: str, value: Any) -> None:
        """Set ``section.key``."""
        section, _, key = place.partition(".")
        self.content.setdefault(section, {})[key] = value

    def text(self, name: str) -> str:
        """The recipe as YAML; ``name``: its file name."""
        ordered = {section: self.content[section] for section in SECTIONS if section in self.content}
        return f"# labelskew run {name}\n{yaml.write(ordered)}"


def convert(text: str, source: Path) -> Converted:
    """Convert a FedML configuration to a recipe, which may lack required values. Raise RecipeError for another text."""
    content = _configuration(text, source)
    conversion = _Conversion({key: value for keys in content.values() for key, value in keys.items()}, source.parent)
    made = Converted()
    for section, keys in content.items():
        for key, value in keys.items():
            target = conversion.target(section, key, value)
            if target is not None:
                made.put(*target)
            if note := conversion.note(section, key, value, target):
                made.notes.append(f"{shown(section)}.{shown(key)}: {note}")
    if conversion.wandb:
        params = {ours: conversion.flat[theirs] for theirs, ours in WANDB.items() if conversion.flat.get(theirs)}
        made.put("tracking_args.trackers", [{"wandb": params} if params else "wandb"])
    if "method" not in made.content.get("method_args", {}):
        made.put("method_args.method", "fedavg")
        made.notes.append("method_args.method: fedavg, FedML's own training; choose one of labelskew methods")
    return made


def _configuration(text: str, source: Path) -> dict[str, dict[str, Any]]:
    try:
        content, duplicates = yaml.read(text)
    except yaml.YamlError as error:
        raise RecipeError([f"{shown(source)}: {error}"]) from None
    if duplicates:
        raise RecipeError([f"{shown(source)}: {line}" for line in duplicates])
    parse.refuse_launch_job(source, content)
    content = content if isinstance(content, dict) else {}
    sections = {section: {} if keys is None else keys for section, keys in content.items()}
    if not {"common_args", "train_args", *PLUGGED} & sections.keys():
        use = "use one with sections such as common_args, data_args and train_args"
        raise RecipeError([f"{shown(source)}: is not a FedML configuration; {use}"])
    wrong = [shown(section) for section, keys in sections.items() if not isinstance(keys, dict)]
    if wrong:
        raise RecipeError([f"{shown(source)}: {section}: is not a section with keys; remove it" for section in wrong])
    if "method_args" in sections:
        try:
            parse.parse(text, source=source)
        except RecipeError:
            return sections  # a FedML configuration with one of our methods
        raise RecipeError([f"{shown(source)}: this is already a recipe; run it with `labelskew run {shown(source)}`"])
    return sections


class _Conversion:
    """Conversion of each key. FedML merges all sections into one namespace, ``flat``, in which the last value wins."""

    def __init__(self, flat: Mapping[str, Any], folder: Path) -> None:
        self.folder, self.flat, self.wandb = folder, flat, flat.get("enable_wandb") is True
        self.chosen = {key: _value(key, flat[key]) for key in (*VALUES, "method") if key in flat}
        if self.chosen.get("dataset") in ("femnist", "shakespeare"):  # FedML always divides them by writer or role
            self.chosen["partition_method"] = "natural"
        self.known = {section: {*keys_of(model)} for section, model in SECTIONS.items()}
        for section, model in PLUGGED.items():
            name = self.chosen.get(model.key, model.model_fields[model.key].default)
            with contextlib.suppress(PluginError):  # unknown, which the check of the recipe reports
                if isinstance(name, str) and name.isidentifier():
                    self.known[section] |= {*keys_of(catalog.load(model.kind, name).Params)}

    def target(self, section: str, key: str, value: Any) -> tuple[str, Any] | None:
        """``section.key`` and value in the recipe, if any."""
        renamed = dict(RENAMED)
        if self.chosen.get("backend") == "MPI":
            renamed["worker_num"] = "comm_args.workers"
        if value is None or key in HOSTS_TRACKING:
            return None
        if key == "grpc_ipconfig_path" and (address := _server_in(self.folder / str(value))):
            return "comm_args.server_address", address
        if key in renamed:
            home, _, name = renamed[key].partition(".")
            taken = [value] if name == "gpu_ids" else value
            return (renamed[key], taken) if name in self.known[home] else None
        known = (name for name in (section, *self.known) if key in self.known.get(name, ()))
        home = section if section == "security_args" else "" if key in DROPPED else next(known, "")
        return (f"{home}.{key}", self.chosen.get(key, value)) if home else None

    def note(self, section: str, key: str, value: Any, target: tuple[str, Any] | None) -> str:
        """Message about a key, unless it is kept unchanged."""
        if key in HOSTS_TRACKING:
            return self._of_tracking(key)
        if key == "scenario" and value not in (None, "horizontal"):
            return f"{show(value)} is not supported; use one process for each silo"
        if target is None:
            return f"dropped; {self._reason(key, value)}"
        place, taken = target
        if key in ("weight_decay", "momentum") and value and self.flat.get("client_optimizer", "sgd") == "sgd":
            return "kept, and used here; FedML's own trainer ignores it with client_optimizer: sgd"
        if key in VALUES and taken != value:
            more = "; set comm_args.server_address to the server's address for silos" if taken == "GRPC" else ""
            return f"{show(value)} is {place}: {taken} here{more}"
        return "" if place == f"{section}.{key}" else f"is {place} here"

    def _reason(self, key: str, value: Any) -> str:
        if key in DROPPED:
            return DROPPED[key]
        if value is None:
            return "it has no value"
        if owners := _owners(RENAMED.get(key, key).rpartition(".")[2]):
            return f"used with {owners} only"
        return f"no such key here{nearest(key, [name for keys in self.known.values() for name in keys])}"

    def _of_tracking(self, key: str) -> str:
        if self.wandb and key in WANDB:
            return f"is a parameter {WANDB[key]} of the tracker wandb here"
        if self.wandb and key == "enable_wandb":
            return "is trackers: [wandb] here, which sends nothing; to send: mode: online"
        is_wandb = key in WANDB or "wandb" in key
        return "dropped; enable_wandb is false" if is_wandb and not self.wandb else f"dropped; {HOSTS_TRACKING[key]}"


def _server_in(file: Path) -> str | None:
    """The address of rank 0 in FedML's CSV file of ``eid,rank,grpc_server_ip,grpc_server_port``, if any."""
    with (
        contextlib.suppress(OSError, ValueError, KeyError, TypeError, csv.Error),
        open(file, encoding="utf-8-sig", opener=open_regular) as lines,
    ):
        for row in csv.DictReader(lines, skipinitialspace=True):
            if row["rank"] == "0":
                address = addresses.join(row["grpc_server_ip"], int(row["grpc_server_port"]))
                addresses.split(address)
                return address
    return None


def _owners(key: str) -> str:
    for section in ("train_args", "partition_args"):
        chooser, names = PLUGGED[section], []
        for entry in catalog.entries(chooser.kind):
            with contextlib.suppress(PluginError):
                if key in keys_of(catalog.load(chooser.kind, entry.name).Params):
                    names.append(entry.name)
        if names:
            return f"{chooser.key}: {' or '.join(names)}"
    return ""


def _value(key: str, value: Any) -> Any:
    return VALUES[key].get(value, value) if key in VALUES and isinstance(value, str) else value
