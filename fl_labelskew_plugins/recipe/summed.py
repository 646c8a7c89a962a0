"""How many silos a secure sum must contain (``comm_args.secure_aggregation``).

The difference of two sums over sets that differ by one client is that client's part. Values that a client sends in each
round, such as class counts, follow from the sums of several rounds over different sets. Without noise, each sum is
therefore over all clients.
"""

from __future__ import annotations

from collections.abc import Iterator

from fl_labelskew_registry import Method

from fl_labelskew_plugins.recipe.comm import to_the_end
from fl_labelskew_plugins.recipe.mistakes import Conflict
from fl_labelskew_plugins.recipe.model import Sections


def fewest_summed(recipe: Sections) -> int:
    """Fewest clients of a round's sum: with noise ``secure_threshold``, by default two thirds; else all."""
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


def conflicts(recipe: Sections, method: Method) -> Iterator[Conflict]:
    """Sums over few clients, and, without noise, sums over different clients."""
    if not recipe.comm.secure_aggregation:
        return
    for part in getattr(method, "parts", {"": method}).values():
        if (share := getattr(part.params, "share_prototypes", 1)) < 1:
            what = f"{share:g}: the sum of prototypes would be of few clients; allowed: 1, or no secure aggregation"
            yield Conflict("method_args.share_prototypes", what, ("comm_args.secure_aggregation",))
    every = recipe.train.client_num_in_total
    for key, clients in (
        ("train_args.client_num_per_round", recipe.train.clients_per_round),
        ("comm_args.secure_threshold", fewest_summed(recipe)),
    ):
        if clients < every and recipe.privacy.noise_multiplier is None:
            what = f"{clients} of {every} clients: sums over different clients can be compared, and reveal single ones"
            allowed = f"{every}, noise (privacy_args.noise_multiplier), or no secure aggregation"
            yield Conflict(key, f"{what}; allowed: {allowed}", ("comm_args.secure_aggregation",))
            return
