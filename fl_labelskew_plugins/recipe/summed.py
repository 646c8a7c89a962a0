"""How many silos a secure sum must contain, and which values it can contain (``comm_args.secure_aggregation``).

The difference of two sums over sets that differ by one client is that client's part. Without noise, the values that a
client sends in each round must therefore be summed over all clients, or differ from round to round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fl_labelskew_registry import Federation, Method, Optimizer

from fl_labelskew_plugins.recipe.comm import to_the_end
from fl_labelskew_plugins.recipe.mistakes import Conflict
from fl_labelskew_plugins.recipe.model import Sections

CORRECTED = ("FedDC", "Mime", "SCAFFOLD")
"""Optimisers that add to each gradient what all clients have been sent."""
SHAPES = {"classifier.weight": (1, 1)}
"""Parameters of some network; an optimiser's names do not depend on it."""


def fewest_summed(recipe: Sections) -> int:
    """Fewest clients of a round's sum: ``secure_threshold``; by default all of the round, or two thirds with noise."""
    clients = recipe.train.clients_per_round
    default = clients if recipe.privacy.noise_multiplier is None else min(clients, to_the_end(clients))
    return recipe.comm.secure_threshold or default


def fewest_opened(recipe: Sections) -> int:
    """Fewest clients of the opening sum: as many may be missing as in a round."""
    train = recipe.train
    return train.client_num_in_total - train.clients_per_round + fewest_summed(recipe)


def quorum(recipe: Sections) -> int:
    """Uploads that a round needs; with secure aggregation across silos at least those that a sum needs."""
    uploads = recipe.comm.quorum(recipe.train.clients_per_round)
    summed = recipe.common.across_silos and recipe.comm.secure_aggregation
    return max(uploads, fewest_summed(recipe)) if summed else uploads


def sums_of_all(recipe: Sections) -> bool:
    """Whether each round's sum is over all clients."""
    return recipe.train.client_num_in_total == recipe.train.clients_per_round == fewest_summed(recipe)


def static_values(recipe: Sections, method: Method, optimizer: Optimizer) -> list[str]:
    """Values in each round's sum that can be the same in each round, such as class counts."""
    train, some = recipe.train, Federation(2, 2, 1, 1, 2, 1, 2, 1, 0)  # names do not depend on sizes
    values = ["train_args.proxy_aggregation: class"] if train.proxy_aggregation == "class" else []
    if train.weight_decay:  # weights that get no gradient shrink by a factor of the client's weight and steps
        values.append("samples and steps (train_args.weight_decay)")
    # rows of the classifier that stay as they are show which classes a client lacks
    for name, value in (("alpha", 0), ("missing", "mask"), ("local", "positive")):
        values += [f"missing classes ({name}: {value})"] if value in parameters(method, name) else []
    if train.federated_optimizer in CORRECTED:  # weights that get no gradient follow the correction, once in each step
        values.append(f"steps (federated_optimizer: {train.federated_optimizer})")
    sent = method.contribution_shapes(some) if recipe.comm.send_contributions else ()
    values += [f"{name} of the method" for name in sorted(sent)]
    beside = optimizer.contribution_shapes(SHAPES).keys() - SHAPES  # one value for each parameter follows the training
    return values + [f"{name} of federated_optimizer {train.federated_optimizer}" for name in sorted(beside)]


def parameters(method: Method, name: str) -> list[Any]:
    """Values of a parameter of the method, or of the parts of a combination that have one of this name."""
    parts = getattr(method, "parts", {"": method}).values()
    return [getattr(part.params, name) for part in parts if hasattr(part.params, name)]


def conflicts(recipe: Sections, method: Method, optimizer: Optimizer) -> Iterator[Conflict]:
    """Values that a sum over few clients, or two rounds' sums over different clients, would reveal of one client."""
    train, noise = recipe.train, recipe.privacy.noise_multiplier
    if not recipe.comm.secure_aggregation:
        return
    for share in parameters(method, "share_prototypes"):
        if share < 1:
            what = f"{share:g}: the sum of prototypes would be of few clients; allowed: 1, or no secure aggregation"
            yield Conflict("method_args.share_prototypes", what, ("comm_args.secure_aggregation",))
    if noise is not None or sums_of_all(recipe):
        return  # with noise, a recipe may send weights only
    if values := static_values(recipe, method, optimizer):
        every = train.client_num_in_total
        key, value = "train_args.client_num_per_round", train.clients_per_round
        if value == every:
            key, value = "comm_args.secure_threshold", fewest_summed(recipe)
        what = f"{value} of {every} clients: the sums of two rounds can reveal one client's {', '.join(values)}"
        related = ("comm_args.secure_aggregation", "method_args", "train_args.federated_optimizer")
        allowed = f"{every}, noise (privacy_args.noise_multiplier), or no secure aggregation"
        yield Conflict(key, f"{what}; allowed: {allowed}", related)
