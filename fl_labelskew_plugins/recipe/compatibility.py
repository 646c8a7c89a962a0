"""Compatible methods and optimisers, and the choice between our code and FedML's corrected code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from fl_labelskew_registry import Method, Optimizer, mistake
from torch import nn

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.conflicts import SECURE, sum_conflicts
from fl_labelskew_plugins.recipe.mistakes import Conflict
from fl_labelskew_plugins.recipe.model import Recipe, Sections
from fl_labelskew_plugins.recipe.sections import OF_UPLOADS

Source = Literal["own", "corrected"]

CORRECTABLE = {
    "FedAvg": "fedml.simulation.sp.fedavg.fedavg_api.FedAvgAPI",
    "FedProx": "fedml.simulation.sp.fedprox.fedprox_trainer.FedProxTrainer",
    "FedOpt": "fedml.simulation.sp.fedopt.fedopt_api.FedOptAPI",
    "FedNova": "fedml.simulation.sp.fednova.fednova_trainer.FedNovaTrainer",
}
"""Classes of FedML 0.9.6, by optimiser, with bugs that can be corrected from outside."""


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
    train, comm, wanted = recipe.train, recipe.comm, recipe.train.optimizer_source
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
    if method.aggregation == "declared" and not comm.send_contributions:
        message = "false cannot be used with a method whose clients send the weights of their uploads; allowed: true"
        yield Conflict("comm_args.send_contributions", message, ("method_args.method",))
    if sends_more(optimizer) and method.protects():
        message = f"{name} sends more than weights, but the method's protection of uploads covers only weights"
        right = "FedAvg, FedProx, FedOpt, FedDyn, or no protection"
        yield Conflict(key[0], f"{message}; allowed: {right}", ("method_args",))
    if comm.secure_aggregation and (method.individual or method.aggregation == "declared"):
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
    if wanted == "corrected" and name in CORRECTABLE and (reason := _unsupported(recipe, method, optimizer)):
        yield Conflict("train_args.optimizer_source", f"corrected: {reason}; allowed: own, or null", key)


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
    needs = [(key, "true", "false") for key in recipe.host_switches]
    if recipe.train.optimizer_source == "corrected" and recipe.train.federated_optimizer in CORRECTABLE:
        needs.append(("train_args.optimizer_source", "corrected", "own, null"))
    for key, value, right in needs:
        raise mistake(key, f"{value} needs FedML's code, but this run does not use FedML", f"{right}, or {use}")
    return recipe.model_copy(update={"hosted": False})


class CodeChoice(NamedTuple):
    """The code that runs a recipe, and the reason."""

    source: Source
    reason: str


def choice(recipe: Recipe, model: nn.Module) -> CodeChoice:
    """Choose the code that runs a recipe. Raise LabelSkewError if FedML's was requested, but cannot."""
    wanted, name = recipe.train.optimizer_source, recipe.train.federated_optimizer
    if wanted == "own":
        return CodeChoice("own", "asked for")
    if not recipe.hosted:
        return CodeChoice("own", "without FedML")
    if name not in CORRECTABLE:
        return CodeChoice("own", f"FedML has no {name} with bugs that can be corrected")
    if wanted is None and name == "FedAvg":
        return CodeChoice("own", "default of FedAvg")
    reason = _unsupported(recipe, recipe.method, recipe.optimizer) or _unsupported_network(recipe, model)
    if wanted is None and recipe.train.client_optimizer != "sgd":
        reason = reason or f"default with client_optimizer {recipe.train.client_optimizer}"
    if reason is None:
        return CodeChoice("corrected", "asked for" if wanted else f"default of {name}")
    if wanted is None:
        return CodeChoice("own", reason)
    raise mistake("train_args.optimizer_source", f"{wanted}: {reason}", "own, or null")


def overruled(recipe: Recipe) -> list[str]:
    """A log message if the optimiser's aggregation weights replace the method's."""
    method, optimizer = recipe.method, recipe.optimizer
    if optimizer.aggregation in (None, method.aggregation):
        return []
    return [
        f"uploads are weighted as in {recipe.train.federated_optimizer} ({optimizer.aggregation}), not as in "
        f"{recipe.method_name} ({method.aggregation})"
    ]


def corrections(recipe: Recipe, *, cpu: bool = True) -> Iterator[str]:
    """Corrections of FedML's code that affect a recipe; docs/mixing.md describes the bugs."""
    train, name, options = recipe.train, recipe.train.federated_optimizer, recipe.optimizer.params
    plain = name in ("FedAvg", "FedProx", "FedOpt")  # client SGD gets only a learning rate in FedML
    if cpu and name in ("FedAvg", "FedProx") and train.clients_per_round > 1:
        yield "in the first round, every client starts from the server's weights"
    if cpu and name == "FedOpt":
        yield "every client, and the server's step, start from the server's weights"
    if plain and train.client_optimizer == "sgd" and (train.momentum or train.weight_decay):
        yield "momentum and weight_decay are the recipe's"
    if plain and train.client_optimizer == "adam":
        yield "Adam is Adam, not AMSGrad"
    if name == "FedOpt" and options.server_momentum > 0:
        yield "server_momentum is the recipe's"
    if train.lr_schedule != "constant":
        yield "the learning rate follows its schedule"
    if recipe.method.aggregation != "samples":
        yield "uploads have the weights that the method requires"


def describe(recipe: Recipe, model: nn.Module) -> dict[str, Any]:
    """A run's record of the chosen code."""
    chosen, name = choice(recipe, model), recipe.train.federated_optimizer
    record: dict[str, Any] = {"name": name, "source": chosen.source, "why": chosen.reason}
    if chosen.source == "own":
        return record
    cpu = next(model.parameters()).device.type == "cpu"
    record |= {"class": CORRECTABLE[name], "fedml": version("fedml")}
    return record | {"corrections": list(corrections(recipe, cpu=cpu))}


def _unsupported_network(recipe: Recipe, model: nn.Module) -> str | None:
    if next(model.buffers(), None) is not None:
        return f"FedML cannot train {recipe.network_name}, which has batch normalisation or other buffers"
    if not all(p.requires_grad for p in model.parameters()):
        return f"FedML cannot train {recipe.network_name}, which has frozen parameters"
    return None


def _unsupported(recipe: Sections, method: Method, optimizer: Optimizer) -> str | None:
    """Reason if FedML's code cannot run a recipe."""
    train, comm, security = recipe.train, recipe.comm, recipe.security
    reasons = {
        f"FedML's code needs backend sp, not {comm.backend}": not comm.in_process,
        "FedML's training supports only methods that change logits": not method.logits_only(),
        "FedML trains only with fp32 (device_args.precision)": recipe.device.precision != "fp32",
        "FedML does not clip gradients (train_args.gradient_clip_norm)": train.gradient_clip_norm is not None,
        "FedML does not augment images (train_args.augment)": bool(train.augment),
        "FedML does not weight rows by class (train_args.proxy_aggregation)": train.proxy_aggregation == "class",
        "FedML's attacks and defences work only with FedAvg (security_args)": security.enable_attack
        or security.enable_defense,
        "FedML's noise works only with FedAvg (dp_args)": recipe.dp.enable_dp,
        "FedML's server sees single uploads (comm_args.secure_aggregation)": comm.secure_aggregation,
        "FedML's training cannot be observed (tracking_args.diagnostics)": bool(recipe.tracking.diagnostics),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
