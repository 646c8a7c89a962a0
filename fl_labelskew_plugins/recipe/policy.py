"""Check a silo's policy before a run; :mod:`.runtimes.silo.guard` checks during the run."""

import itertools
import math
from collections.abc import Iterator

from fl_labelskew_registry import Federation

from fl_labelskew_plugins.recipe.conflicts import quorum
from fl_labelskew_plugins.recipe.mistakes import quoted
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.sections import Policy

OTHER, OPTIMIZER = "other", "optimizer"
OPENING = " in the opening exchange of "  # part of the settings below
IN_HELLO = (
    "train_args.proxy_aggregation class",
    "sums over all training samples (to avoid them, set data_args.mean and std in the server's recipe)",
)
"""Settings with which the first message of a silo contains data."""


def refused(policy: Policy, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Key and error message of each violation of a policy."""
    for name in recipe.method_name.split("+"):
        if policy.methods is not None and name not in policy.methods:
            yield _line(policy, "methods", f"method_args.method {name}")
    train = recipe.train
    all_clients = train.clients_per_round == train.client_num_in_total
    if policy.max_rounds is not None and all_clients and train.comm_round > policy.max_rounds:
        yield _line(policy, "max_rounds", f"train_args.comm_round {train.comm_round}")
    if policy.min_clients is not None and (uploads := quorum(recipe)) < policy.min_clients:
        yield _line(policy, "min_clients", f"comm_args.min_clients {uploads}")
    if policy.server_fingerprint is not None and recipe.comm.certs is None:
        yield _line(policy, "server_fingerprint", "a connection without certificates (comm_args.certs)")
    if policy.require_secure_aggregation and not recipe.comm.secure_aggregation:
        yield _line(policy, "require_secure_aggregation", "comm_args.secure_aggregation false")
    sent_data = list(sent(recipe))
    for kind, cause in sent_data:
        if policy.send is not None and kind not in policy.send:
            yield _line(policy, "send", f"{kind}: {cause}")
    for name in [name for name, least in policy.noise_at_least or () if least is not None]:
        (least, wanted), key = policy.least_noise(name), f"noise_at_least.{name}"
        if (strength := _noise(recipe, name, [cause for kind, cause in sent_data if kind == "counts"])) < least:
            yield key, f"{least:g} does not allow noise of {strength:g}; set more noise, or change this policy"
        elif wanted and (others := _distributions(recipe, name) - {wanted}):
            yield key, f"{wanted} does not allow {', '.join(others)} noise; set that kind, or change this policy"


def _line(policy: Policy, key: str, demand: str) -> tuple[str, str]:
    limit = quoted(getattr(policy, key))
    return key, f"{limit} does not allow {demand}; use another recipe, or change this policy"


def sent(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Kinds of data that leave a silo, and the causes in the recipe."""
    yield "weights", "every upload"
    if recipe.comm.send_measures:
        yield "measures", "comm_args.send_measures true"
    counts, moments = IN_HELLO
    if recipe.train.proxy_aggregation == "class":
        yield "counts", counts
    if recipe.pools_moments:
        yield "moments", moments
    method, names = recipe.method, recipe.method_name
    some = Federation(2, 2, 1, 1, 2, 1, 2, 1, 0)  # names do not depend on sizes
    for name in method.opening_shapes(some) if method.uses("opening") else ():
        yield method.sends.get(name, OTHER), f"{name}{OPENING}{names}"
    if recipe.comm.send_contributions:
        for name in method.contribution_shapes(some):
            yield method.sends.get(name, OTHER), f"{name} in the uploads of {names}"
        if recipe.optimizer.contribution_shapes({"classifier.weight": (1, 1)}):
            yield OPTIMIZER, f"tensors of {recipe.train.federated_optimizer} in addition to weights"


def _noise(recipe: Recipe, name: str, counts: list[str]) -> float:
    """Strength of one kind of noise; infinite if there is nothing to protect."""
    if name in ("dp", "noise_multiplier"):
        return host_noise(recipe) if name == "dp" else recipe.privacy.noise_multiplier or 0.0
    parts = recipe.methods.values()
    strengths = [float(getattr(method.params, name, None) or 0) for method in parts]
    if name == "upload_sigma":
        return max(strengths)
    # only counts of an opening may have noise; counts in uploads or HELLO are exact
    exact = [cause for cause in counts if OPENING not in cause]
    opens = [method.uses("opening") and "counts" in method.sends.values() for method in parts]
    return 0.0 if exact else min(itertools.compress(strengths, opens), default=math.inf)


def _distributions(recipe: Recipe, name: str) -> set[str]:
    """Distributions of the noise ``name``; for sums and FedRS, Gaussian."""
    if name == "count_noise":
        params = [method.params for method in recipe.methods.values() if getattr(method.params, name, None)]
        return {getattr(values, "count_noise_type", "laplace") for values in params}
    return {recipe.dp.mechanism_type or "none"} if name == "dp" else {"gaussian"}


def host_noise(recipe: Recipe) -> float:
    """Scale of FedML 0.9.6's noise on uploads (``fedml/core/dp/mechanisms``)."""
    dp = recipe.dp
    if not dp.enable_dp or dp.dp_solution_type != "ldp" or dp.epsilon is None or dp.sensitivity is None:
        return 0.0
    if dp.mechanism_type == "laplace":
        return dp.sensitivity / (dp.epsilon - math.log(1 - (dp.delta or 0.0)))
    return math.sqrt(2 * math.log(1.25 / dp.delta)) * dp.sensitivity / dp.epsilon if dp.delta else 0.0
