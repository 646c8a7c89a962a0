"""Compatible methods and optimisers, and features that need FedML."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from fl_labelskew_registry import Optimizer, mistake

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.conflicts import SECURE
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.sections import OF_UPLOADS

OF_FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: Ray listens only on 127.0.0.1
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # clients see the GPUs
}
"""Environment variables, read by the imports. Flower and Ray send nothing to their makers."""


def check_extras(recipe: Recipe) -> None:
    """Raise LabelSkewError if required packages are missing."""
    comm = recipe.comm
    if comm.over_mpi:
        library = f"; it also needs Open MPI: {extras.OPEN_MPI}"
        extras.load("mpi", "mpi4py", what="comm_args.backend: MPI", otherwise=library)
    if comm.over_flower:
        flower()
    elif recipe.common.across_silos:
        grpc()
        if comm.certs is not None:
            extras.load("grpc", "cryptography", what="comm_args.certs")
        if comm.secure_aggregation:
            extras.load("grpc", "Crypto", what="comm_args.secure_aggregation")
    if recipe.privacy.budget is not None:
        extras.load("privacy", "dp_accounting", what="privacy_args.budget")


def flower() -> None:
    """Import Flower without its telemetry. It excludes FedML."""
    what = "comm_args.backend: Flower"
    if sys.version_info < (3, 11):
        raise mistake(what, f"needs Python 3.11 or later, and this is {sys.version.split()[0]}", "a later Python")
    if find_spec("flwr") is None and host_installed():
        problem = "flwr is not installed, and excludes FedML: they need different versions of protobuf"
        raise mistake(what, problem, "an environment without FedML (docs/flower.md)")
    for key, value in OF_FLOWER.items():
        os.environ.setdefault(key, value)
    extras.load("flower", "flwr", "ray", what=what)


def grpc() -> Any:
    """Import grpc without its log of refused connections."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read by the import
    return extras.load("grpc", "grpc", what="comm_args.backend: GRPC")


def missing_trackers(recipe: Recipe) -> list[str]:
    """Trackers of a recipe that are not installed."""
    named = {name for item in recipe.tracking.trackers for name in item}
    return [name for name in ("mlflow", "tensorboard", "wandb") if name in named and find_spec(name) is None]


def sends_more(optimizer: Optimizer) -> bool:
    """Whether clients send changes, or more than weights."""
    return optimizer.sends_change or bool(optimizer.contribution_shapes({"classifier.weight": (1, 1)}))


def conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Key and error message of each conflict of the method and the optimiser."""
    train, comm, method, optimizer = recipe.train, recipe.comm, recipe.method, recipe.optimizer
    name, key = train.federated_optimizer, "train_args.federated_optimizer"
    cannot = f"cannot be used with federated_optimizer {name}"
    if train.client_optimizer not in optimizer.client_optimizers:
        right = ", ".join(optimizer.client_optimizers)
        yield "train_args.client_optimizer", f"{train.client_optimizer} {cannot}; allowed: {right}"
    if train.momentum and not optimizer.local_momentum:
        reason = "which has momentum on the server (server_momentum)"
        yield "train_args.momentum", f"{train.momentum:g} {cannot}, {reason}; allowed: 0"
    if method.aggregation == "declared" and not comm.send_contributions:
        message = "false cannot be used with this method: clients must send the weights of their uploads; allowed: true"
        yield "comm_args.send_contributions", message
    if comm.secure_aggregation and (method.individual or method.aggregation == "declared"):
        message = "true cannot be used with a method that needs what each client sends, not their sum; allowed: false"
        yield SECURE, message
    if sends_more(optimizer):
        right = "allowed: FedAvg, FedProx, FedOpt, FedDyn, FedSAM, FedLESAM, or no"
        if not comm.send_contributions:
            yield "comm_args.send_contributions", f"false {cannot}, which sends more than weights; allowed: true"
        if method.protects():
            reason = "but the method's protection of uploads covers only weights"
            yield key, f"{name} sends more than weights, {reason}; {right} protection"
        if comm.secure_aggregation:
            reason = "and the sums of both can reveal data of one client"
            yield key, f"{name} sends more than weights, {reason}; {right} secure aggregation"
    if optimizer.changes_upload and (affected := [kind for kind in recipe.tracking.diagnostics if kind in OF_UPLOADS]):
        message = f"{', '.join(affected)}: uploads with federated_optimizer {name} are not trained models"
        yield "tracking_args.diagnostics", f"{message}; allowed: other diagnostics, or another optimiser"
    yield from _switch_conflicts(recipe)


def _switch_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    name, more = recipe.train.federated_optimizer, "FedML checks and protects only weights, but clients also send"
    if recipe.method.uses("contribute"):
        problem = f"method {recipe.method_name}: {more} other tensors of this method"
    elif sends_more(recipe.optimizer):
        problem = f"federated_optimizer {name}: {more} other tensors of this optimiser"
    elif recipe.train.proxy_aggregation == "class":
        problem = "proxy_aggregation class: FedML may drop clients"
    else:
        return
    for switch in recipe.host_switches:
        yield switch, f"true cannot be used with {problem}; allowed: false"


def host_installed() -> bool:
    """Whether FedML is installed; it supports only Python 3.10 and 3.11."""
    return find_spec("fedml") is not None


def uses_rounds(recipe: Recipe) -> str | None:
    """A setting that makes rounds depend on ``comm_round``, if any."""
    if switches := recipe.host_switches:
        return f"{switches[0]}: FedML's code may use it"
    methods = {recipe.method_name: recipe.method, **recipe.methods}
    plugins: dict[str, Any] = {f"method_args.method: {name}": method for name, method in methods.items()}
    plugins[f"train_args.federated_optimizer: {recipe.train.federated_optimizer}"] = recipe.optimizer
    return next((name for name, plugin in plugins.items() if plugin.uses_rounds), None)


def hosted(recipe: Recipe, host: str | None, before: str | None = None) -> Recipe:
    """The recipe, with or without FedML; raises LabelSkewError if it needs FedML, which is missing.

    ``host``: ``fedml`` or ``none``; default: ``before``, of a resumed run, or FedML if installed.
    """
    if host not in (None, "fedml", "none"):
        raise mistake(f"host {clean(host)}", "is unknown", "fedml or none")
    installed, use = host_installed(), "--host fedml"
    if recipe.comm.over_flower:
        if host == "fedml":
            problem = "comm_args.backend Flower runs without FedML: they need different versions of protobuf"
            raise mistake("--host fedml", problem, "--host none")
        return without_host(recipe, "another backend")
    if not installed:
        use = "Python 3.10 or 3.11, which FedML supports"
        if host == "fedml":
            raise mistake("--host fedml", "FedML is not installed here", f"--host none, or {use}")
    return recipe if installed and (host or before) != "none" else without_host(recipe, use)


def without_host(recipe: Recipe, use: str) -> Recipe:
    """The recipe without FedML; raises LabelSkewError, with the advice ``use``, if it needs FedML."""
    for key in recipe.host_switches:
        raise mistake(key, "true needs FedML's code, but this run does not use FedML", f"false, or {use}")
    return recipe.model_copy(update={"hosted": False})


def overruled(recipe: Recipe) -> list[str]:
    """A log message if the optimiser's weights of uploads replace the method's."""
    method, optimizer = recipe.method, recipe.optimizer
    if optimizer.aggregation in (None, method.aggregation):
        return []
    used = f"{recipe.train.federated_optimizer} ({optimizer.aggregation})"
    return [f"uploads are weighted as in {used}, not as in {recipe.method_name} ({method.aggregation})"]
