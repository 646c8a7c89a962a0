"""The host's side of every runtime: its arguments and its start, without its network calls, logger or argv."""

from __future__ import annotations

import contextlib
import io
import logging
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedml
import fedml.arguments
import yaml
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.engine import devices
from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.recipe.compatibility import host_switches
from fl_labelskew_plugins.recipe.mistakes import failure
from fl_labelskew_plugins.recipe.model import Recipe

OURS = ("partition_args", "method_args", "model_args", "client_specific_args", "privacy_args")
"""Sections that the host does not get: it flattens all sections into one namespace, where later keys win silently."""


def host_config(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The recipe as a FedML configuration: the host's sections, without what is not set."""
    sections = {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in recipe.resolved().items()
        if name not in OURS
    }
    sections["data_args"] = {"dataset": recipe.data.dataset}
    sections["common_args"]["sys_perf_profiling"] = False
    return sections


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Report an error of the host's attacks, defences or noise in one line: it takes their keys as they are."""
    try:
        yield
    except Exception as error:
        raise LabelSkewError(f"security_args, dp_args: FedML fails with these keys: {failure(error)}") from error


def offline() -> None:
    """Keep FedML from contacting its cloud; call it before ``fedml.init``, for the whole process."""
    fedml.core.mlops.fetch_config = lambda *_, **__: None


def start(recipe: Recipe, config_file: Path, *, rank: int = 0) -> Any:
    """Write the host's configuration, start the host and return its arguments; ``rank``: 0 for the server.

    The host would look up its cloud, replace ``sys.stdout.write`` and parse ``sys.argv``; none of it happens.
    """
    config = host_config(recipe)
    if recipe.comm.over_mpi and (place := mpi_rank()):
        mapping = config_file.with_name("gpu_mapping.yaml")
        keys: dict[str, Any] = {"gpu_mapping_file": None, "gpu_mapping_key": None}  # it reads them on the CPU too
        if gpus := devices.host_mapping(recipe, place[1] - 1):
            write_text(mapping, yaml.safe_dump(gpus))
            keys = {"gpu_mapping_file": str(mapping), "gpu_mapping_key": "mapping_default"}
        config["device_args"] |= keys
    text = yaml.safe_dump(config, sort_keys=False)
    write_text(config_file, "# what FedML itself was given\n" + text)
    role = "client" if rank else "server"
    args = fedml.arguments.Arguments(Namespace(yaml_config_file=str(config_file), run_id="0", rank=rank, role=role))
    offline()
    # Singletons of the host: what an earlier run in this process switched on would otherwise stay on.
    FedMLDifferentialPrivacy._dp_instance = None
    FedMLAttacker._attacker_instance = None
    FedMLDefender._defender_instance = None
    level = logging.getLogger().level
    switched = host_errors() if host_switches(recipe) else contextlib.nullcontext()
    with switched, contextlib.redirect_stdout(io.StringIO()):  # it prints its list of silos
        args = fedml.init(args, check_env=False, should_init_logs=False)
    logging.getLogger().setLevel(max(level, logging.WARNING))
    return args
