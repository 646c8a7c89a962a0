"""Compatible methods and optimisers, and features that need FedML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from fl_labelskew_registry import Method, Optimizer, mistake

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.conflicts import SECURE, sum_conflicts
from fl_labelskew_plugins.recipe.mistakes import Conflict
from fl_labelskew_plugins.recipe.model import Recipe, Sections
from fl_labelskew_plugins.recipe.sections import OF_UPLOADS


def check_extras(recipe: Recipe) -> None:
    """Raise LabelSkewError if packages that a recipe needs are missing."""
    comm = recipe.comm
    if comm.over_mpi:
        extras.load(
            "mpi", "mpi4py", what="comm_args.backend: MPI", otherwise=f"; it also needs Open MPI: {extras.OPEN_MPI}"
        )
    if recipe.common.across_silos:
        grpc()
        if comm.certs is not None:
            extras.load("grpc", "cryptography", what="comm_args.certs")
        if comm.secure_aggregation:
            extras.load("grpc", "Crypto", what="comm_args.secure_aggregation")
    if recipe.privacy.budget is not None:
        extras.load("privacy", "dp_accounting", what="privacy_args.budget")


def grpc() -> Any:
    """Import grpc without its log of refused connections; ``GRPC_VERBOSITY=info`` shows it."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC reads it when it is imported
    return extras.load("grpc", "grpc", what="comm_args.backend: GRPC")


def missing_trackers(recipe: Recipe) -> list[str]:
    """Trackers of a recipe without installed packages."""
    named = {name for item in recipe.tracking.trackers for name in item}
    return [name for name in ("mlflow", "tensorboard", "wandb") if name in named and find_spec(name) is None]


def sends_more(optimizer: Optimizer) -> bool:
    """Whether clients send changes, or tensors in addition to their weights."""
    return optimizer.sends_change or bool(optimizer.contribution_shapes({"classifier.weight": (1, 1)}))


def conflicts(recipe: Sections, method: Method, optimizer: Optimizer) -> Iterator[Conflict]:
    """Conflicts of a method and an optimiser with each other and the recipe, as in :func:`.conflicts.conflicts`."""
    train, comm = recipe.train, recipe.comm
    name, key = train.federated_optimizer, ("train_args.federated_optimizer",)
    if train.client_optimizer not in optimizer.client_optimizers:
        right = ", ".join(optimizer.client_optimizers)
        message = f"{train.client_optimizer} cannot be used with federated_optimizer {name}; allowed: {right}"
        yield Conflict("train_args.client_optimizer", message, key)
    if train.momentum and not optimizer.local_momentum:
        message = f"{train.momentum:g} cannot be used with federated_optimizer {name}, which has momentum on the server"
        yield Conflict("train_args.momentum", f"{message} (server_momentum); allowed: 0", key)
    if sends_more(optimizer) and not comm.send_contributions:
        message = f"false cannot be used with federated_optimizer {name}, which sends more than weights; allowed: true"
        yield Conflict("comm_args.send_contributions", message, key)
    if sends_more(optimizer) and method.protects():
        message = f"{name} sends more than weights, but the method's protection of uploads covers only weights"
        right = "FedAvg, FedProx, FedOpt, FedDyn, or no protection"
        yield Conflict(key[0], f"{message}; allowed: {right}", ("method_args",))
    if comm.secure_aggregation and method.individual:
        message = "true cannot be used with a method that needs what each client sends, not their sum; allowed: false"
        yield Conflict("comm_args.secure_aggregation", message, ("method_args.method",))
    if comm.secure_aggregation and sends_more(optimizer):
        message = f"{name} sends more than weights, and the sums of both can reveal data of one client"
        allowed = "FedAvg, FedProx, FedOpt, FedDyn, or no secure aggregation"
        yield Conflict(key[0], f"{message}; allowed: {allowed}", (SECURE,))
    yield from sum_conflicts(recipe, method)
    if optimizer.changes_upload and (affected := [kind for kind in recipe.tracking.diagnostics if kind in OF_UPLOADS]):
        message = f"{', '.join(affected)}: uploads with federated_optimizer {name} are not trained models"
        yield Conflict("tracking_args.diagnostics", f"{message}; allowed: other diagnostics, or another optimiser", key)


def host_installed() -> bool:
    """Whether FedML is installed; it supports only Python 3.10 and 3.11."""
    return find_spec("fedml") is not None


def uses_rounds(recipe: Recipe) -> str | None:
    """The setting that makes a round depend on ``comm_round``; None without one."""
    if switches := recipe.host_switches:
        return f"{switches[0]}: FedML's code may use it"
    parts = {recipe.method_name: recipe.method, **getattr(recipe.method, "parts", {})}
    plugins = {f"method_args.method: {name}": part for name, part in parts.items()}
    plugins[f"train_args.federated_optimizer: {recipe.train.federated_optimizer}"] = recipe.optimizer
    return next((name for name, plugin in plugins.items() if plugin.uses_rounds), None)


def hosted(recipe: Recipe, host: str | None, before: str | None = None) -> Recipe:
    """The recipe, with or without FedML. Raise LabelSkewError if FedML is missing and needed.

    ``host`` is ``fedml`` or ``none``. The default is ``before``, the host of the run that is resumed, else FedML if it
    is installed.
    """
    if host not in (None, "fedml", "none"):
        raise mistake(f"host {clean(host)}", "is unknown", "fedml or none")
    installed, use = host_installed(), "--host fedml"
    if not installed:
        use = "Python 3.10 or 3.11, which FedML supports"
        if host == "fedml":
            raise mistake("--host fedml", "FedML is not installed here", f"--host none, or {use}")
    return recipe if installed and (host or before) != "none" else without_host(recipe, use)


def without_host(recipe: Recipe, use: str) -> Recipe:
    """The recipe for our own code only. Raise LabelSkewError if it needs FedML, with the alternative ``use``."""
    for key in recipe.host_switches:
        raise mistake(key, "true needs FedML's code, but this run does not use FedML", f"false, or {use}")
    return recipe.model_copy(update={"hosted": False})


def overruled(recipe: Recipe) -> list[str]:
    """A log message if the optimiser's aggregation weights replace the method's."""
    method, optimizer = recipe.method, recipe.optimizer
    if optimizer.aggregation in (None, method.aggregation):
        return []
    return [
        f"uploads are weighted as in {recipe.train.federated_optimizer} ({optimizer.aggregation}), not as in "
        f"{recipe.method_name} ({method.aggregation})"
    ]
