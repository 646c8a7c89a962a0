"""What is wrong with the optimisers of FedML 0.9.6 under ``backend: sp``, and what of it is corrected from outside.

Found by reading and running its code; a test shows each fault and each correction. Nothing here imports the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_labelskew_plugins.recipe.model import Recipe

CLASSES = {
    "FedAvg": "fedml.simulation.sp.fedavg.fedavg_api.FedAvgAPI",
    "FedProx": "fedml.simulation.sp.fedprox.fedprox_trainer.FedProxTrainer",
    "FedOpt": "fedml.simulation.sp.fedopt.fedopt_api.FedOptAPI",
    "FedNova": "fedml.simulation.sp.fednova.fednova_trainer.FedNovaTrainer",
    "FedDyn": "fedml.simulation.sp.feddyn.feddyn_trainer.FedDynTrainer",
    "Mime": "fedml.simulation.sp.mime.mime_trainer.MimeTrainer",
    "SCAFFOLD": "fedml.simulation.sp.scaffold.scaffold_trainer.ScaffoldTrainer",
}
"""The host's class of each optimiser that it has under ``backend: sp``."""

LIVE_IN_EVERY_ROUND = ("FedOpt", "Mime")
"""Optimisers with which the host hands out live weights in every round, not in the first alone (on the CPU)."""

PLAIN_SGD = ("FedAvg", "FedProx", "FedOpt", "SCAFFOLD")
"""Optimisers whose clients' SGD gets a learning rate and nothing else."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        optimizers: whose it is.
        wrong: what the host does.
        right: what is done instead under ``optimizer_source: corrected``; None: nothing, as with all of the optimisers
            that are not in ``compatibility.CORRECTABLE``.
        when: whether it makes a difference to a recipe.
        cpu: whether it is there on the CPU alone.
    """

    optimizers: tuple[str, ...]
    wrong: str
    right: str | None = None
    when: Callable[[Recipe], bool] = lambda recipe: True
    cpu: bool = False


def _options(recipe: Recipe) -> Any:
    return recipe.optimizer.params


def _several(recipe: Recipe) -> bool:
    return recipe.train.clients_per_round > 1


def _sgd(recipe: Recipe) -> bool:
    return recipe.train.client_optimizer == "sgd"


FAULTS = (
    Fault(
        ("SCAFFOLD",),
        "this is the host's SCAFFOLD, which is not SCAFFOLD: the server keeps the last client's change alone, its c is "
        "made of the last client's change, and the clients' control variates stay 0",
    ),
    Fault(
        ("FedDyn",),
        "the penalties have no gradient, so that local training is FedAvg's; the server's state is measured from the "
        "last client's weights and lacks 1 / alpha",
    ),
    Fault(
        ("Mime",),
        "clients' gradients are those at their final weights, summed over batches and clipped to norm 1; the first "
        "local step has no momentum, and the server's optimiser moves the model a second time",
    ),
    Fault(
        ("Mime",),
        "server_momentum plays no part in local steps while train_args.momentum is 0",
        when=lambda recipe: recipe.train.momentum == 0 and _options(recipe).server_momentum > 0,
    ),
    Fault(
        ("FedDyn", "SCAFFOLD"),
        "what a client keeps belongs to its place in the round (initialize_all_clients: false)",
        when=lambda recipe: not _options(recipe).initialize_all_clients,
    ),
    Fault(
        ("FedAvg", "FedProx", "FedDyn"),
        "in the first round, every client starts from the weights that the one before it has trained",
        "in the first round, every client starts from the server's weights",
        _several,
        cpu=True,
    ),
    Fault(
        ("SCAFFOLD",),
        "in the first round, the first client's first step moves the server's weights, too",
        cpu=True,
    ),
    Fault(
        ("Mime",),
        "in every round, each client starts from the weights that the one before it has trained",
        when=_several,
        cpu=True,
    ),
    Fault(
        ("FedOpt",),
        "in every round, each client starts from the weights that the one before it has trained, and the server's step "
        "from the last client's",
        "every client, and the server's step, start from the server's weights",
        cpu=True,
    ),
    Fault(
        PLAIN_SGD,
        "momentum and weight_decay are ignored",
        "momentum and weight_decay are the recipe's",
        lambda recipe: _sgd(recipe) and bool(recipe.train.momentum or recipe.train.weight_decay),
    ),
    Fault(
        ("FedDyn",),
        "momentum is ignored",
        when=lambda recipe: _sgd(recipe) and recipe.train.momentum > 0,
    ),
    Fault((*PLAIN_SGD, "FedDyn"), "Adam is AMSGrad", "Adam is Adam, not AMSGrad", lambda recipe: not _sgd(recipe)),
    Fault(("FedDyn",), "feddyn_alpha is added to weight_decay", when=lambda recipe: not _sgd(recipe)),
    Fault(
        ("FedOpt",),
        "server_momentum is ignored",
        "server_momentum is the recipe's",
        lambda recipe: _options(recipe).server_momentum > 0,
    ),
    Fault(
        tuple(CLASSES),
        "the learning rate stays that of the first round",
        "the learning rate follows its schedule",
        lambda recipe: recipe.train.lr_schedule != "constant",
    ),
    Fault(
        tuple(name for name in CLASSES if name not in ("FedDyn", "SCAFFOLD")),
        "uploads are weighed by their clients' samples, which is not the method's way",
        "uploads are weighed as the method asks for",
        lambda recipe: recipe.method.aggregation != "samples",
    ),
)


def faults(recipe: Recipe, *, cpu: bool = True) -> list[Fault]:
    """What is wrong with the host's own code for a recipe, on the CPU or on a GPU."""
    name = recipe.train.federated_optimizer
    return [fault for fault in FAULTS if name in fault.optimizers and (cpu or not fault.cpu) and fault.when(recipe)]
