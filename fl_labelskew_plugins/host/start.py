"""Start FedML, without its network calls, logger and argv."""

import contextlib
import io
import logging
import re
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
from fl_labelskew_plugins.machine.text import failure
from fl_labelskew_plugins.recipe.model import Recipe

OWN_SECTIONS = ("partition_args", "method_args", "model_args", "client_specific_args", "privacy_args")
"""Sections that FedML does not get: it merges all sections, and later keys silently win."""


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Report errors of FedML's features in one line; FedML does not check their keys."""
    try:
        yield
    except Exception as error:
        if lacks := re.fullmatch("'Arguments' object has no attribute '(.*)'", str(error)):
            raise LabelSkewError(f"security_args.{lacks[1]}: missing; FedML needs it; set it") from error
        raise LabelSkewError(
            f"security_args, dp_args: FedML fails with these settings; its error: {failure(error)}"
        ) from error


def offline() -> None:
    """Prevent FedML from contacting its cloud; must be called before ``fedml.init``."""
    fedml.core.mlops.fetch_config = lambda *_, **__: None


def start(recipe: Recipe, config_file: Path, *, rank: int = 0) -> Any:
    """Write FedML's configuration, start FedML and return its arguments; ``rank``: 0 for the server."""
    config = {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in recipe.resolved().items()
        if name not in OWN_SECTIONS
    }
    config["data_args"] = {"dataset": recipe.data.dataset}
    config["common_args"]["sys_perf_profiling"] = False
    write_text(config_file, "# the configuration for FedML itself\n" + yaml.safe_dump(config, sort_keys=False))
    role = "client" if rank else "server"
    args = fedml.arguments.Arguments(Namespace(yaml_config_file=str(config_file), run_id="0", rank=rank, role=role))
    offline()
    if recipe.host_switches:  # some attacks and defences ask for the device
        fedml.device.get_device = lambda _: devices.device(recipe)
    # these singletons would keep the features of an earlier run in this process
    FedMLDifferentialPrivacy._dp_instance = None
    FedMLAttacker._attacker_instance = None
    FedMLDefender._defender_instance = None
    level = logging.getLogger().level
    switched = host_errors() if recipe.host_switches else contextlib.nullcontext()
    with switched, contextlib.redirect_stdout(io.StringIO()):  # FedML prints its list of silos
        args = fedml.init(args, check_env=False, should_init_logs=False)
        for feature in (FedMLDifferentialPrivacy, FedMLAttacker, FedMLDefender):
            feature.get_instance().init(args)
    logging.getLogger().setLevel(max(level, logging.WARNING))
    return args
