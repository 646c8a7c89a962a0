"""Differential privacy: the noise on data that leave a client, and the limits of a budget."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fl_labelskew_plugins.recipe.conflicts import fewest_summed
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.policy import IN_HELLO, OPENING, host_noise, sent

NoiseKind = Literal["gaussian", "laplace", "discrete", "none"]
BUDGET, MULTIPLIER = "privacy_args.budget", "privacy_args.noise_multiplier"


@dataclass(frozen=True)
class Noise:
    """Noise on data that leaves a client.

    ``silo``: standard deviation, or Laplace scale, divided by the largest change if all samples of a silo are replaced;
    0: no bound. ``claim``: the same if one sample is replaced.
    """

    on: str  # the data, such as `counts`
    kind: NoiseKind = "none"  # discrete: discrete Gaussian, of all clients of a sum together
    silo: float = 0.0
    claim: float = 0.0


@dataclass(frozen=True)
class SentNoise:
    """Noise by message; ``hello``: a silo's first."""

    hello: list[Noise]
    opening: list[Noise]
    upload: list[Noise]
    test: list[Noise]

    @property
    def once(self) -> list[Noise]:
        """Data that leave a client before the first round."""
        return [*self.hello, *self.opening]


def sent_noise(recipe: Recipe, samples: int, least: int) -> SentNoise:
    """Noise on the data that a client with ``samples`` sends.

    ``least``: samples of the smallest client, ``m`` in FedRS's appendix B. Numbers of samples and of
    steps are assumed to be public.
    """
    hello, opening, upload, test = [], [], [], []
    for kind, cause in sent(recipe):
        if kind == "weights":
            upload.append(_on_weights(recipe, least))
        elif OPENING in cause:
            opening.append(on_counts(*count_noises(recipe)[0], samples) if kind == "counts" else Noise(cause))
        elif cause in IN_HELLO and not recipe.comm.secure_aggregation:  # then these are parts of each sum
            hello.append(Noise(cause))
        else:
            upload.append(Noise(cause))
            test += [Noise(cause)] * (kind == "measures")
    return SentNoise(hello, opening, upload, test)


def fewest_opened(recipe: Recipe) -> int:
    """Minimum number of clients in the opening sum: as many may be missing as in a round.

    All, if the method has an opening: without noise, a second run without one client would reveal that client's part.
    Silos choose their own noise, and all must agree on this number.
    """
    every, per_round = recipe.train.client_num_in_total, recipe.train.clients_per_round
    return every if recipe.method.uses("opening") else every - per_round + fewest_summed(recipe)


def on_counts(scale: float, kind: NoiseKind, samples: int) -> Noise:
    """Noise on each class count of a client with ``samples`` samples ``N``.

    Replacing one sample moves two counts by one; replacing all moves them by at most ``2 N`` (L1), ``sqrt(2) N`` (L2).
    """
    if scale == 0:
        return Noise("counts")
    claim = scale / (2 if kind == "laplace" else math.sqrt(2))
    return Noise("counts", kind, claim / max(samples, 1), claim)


def _on_weights(recipe: Recipe, least: int) -> Noise:
    if (multiplier := recipe.privacy.noise_multiplier) is not None:
        return Noise("weights", "discrete", multiplier / 2, multiplier * least / 2)
    params = [method.params for method in recipe.methods.values()]
    clip = next((p.upload_clip for p in params if getattr(p, "upload_clip", None)), None)
    sigma = next((p.upload_sigma for p in params if getattr(p, "upload_sigma", None)), 0.0)
    host, dp = host_noise(recipe), recipe.dp
    if clip is not None and dp.mechanism_type == "gaussian":
        sigma = math.hypot(sigma, host)
    if clip is not None and sigma:
        return Noise("weights", "gaussian", sigma / (2 * clip), sigma * least / (2 * clip))
    if host and dp.sensitivity and dp.mechanism_type:
        return Noise("weights", dp.mechanism_type, 0.0, host / dp.sensitivity)
    return Noise("weights")


def reported_accuracy(recipe: Recipe) -> str:
    """Log message on the accuracies of a server with only sums."""
    if not recipe.validation.per_client:
        return "silos' accuracy: not tested; use validation_args.per_client: true"
    pooled = "the server gets one accuracy, over all silos with send_measures"
    at_server = pooled if recipe.privacy.noise_multiplier is None else "the server gets none, because sums have noise"
    return f"silos' accuracy: {at_server}; each silo's own accuracy is in its folder"


def count_noises(recipe: Recipe) -> list[tuple[float, Any]]:
    """Scale (0: none) and kind of the noise on class counts, least first, of each method that sends them in an opening.

    Without such a method, one without noise.
    """
    methods = recipe.methods.values()
    sending = [one.params for one in methods if one.uses("opening") and "counts" in one.sends.values()]
    noise = [(float(getattr(p, "count_noise", 0)), getattr(p, "count_noise_type", "laplace")) for p in sending]
    return sorted(noise) or [(0.0, "laplace")]


def refused(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Data that a budget cannot bound: key of the recipe, and error message."""
    budget, level, multiplier = recipe.privacy.budget, recipe.privacy.level, recipe.privacy.noise_multiplier
    parts = sent_noise(recipe, 1, 1)
    if multiplier is not None:
        unprotected = [noise.on for noise in parts.upload if noise.on != "weights"]
        if recipe.optimizer.sends_change:
            unprotected.append(f"the changes that {recipe.train.federated_optimizer} sends")
        if not recipe.comm.secure_aggregation:
            use = "comm_args.secure_aggregation: true, or upload_clip and upload_sigma of FedRS"
            yield MULTIPLIER, f"{multiplier:g} adds noise to a sum, but uploads are not summed; use {use}"
        elif unprotected:
            use = "use a method and an optimiser that send only weights, or no noise"
            yield MULTIPLIER, f"{multiplier:g} adds noise only to weights, not to {', '.join(unprotected)}; {use}"
    if budget is None:
        return
    everything = [*parts.once, *parts.upload]
    if unbounded := [noise.on for noise in everything if not getattr(noise, level)]:
        use = "use noise on it (method_args.count_noise; upload_clip and upload_sigma of FedRS), or no budget"
        if level == "silo" and not [noise for noise in everything if not noise.claim]:
            use = "use level: claim, or upload_clip of FedRS"
        yield BUDGET, f"epsilon {budget.epsilon:g} at level {level} does not bound {', '.join(unbounded)}; {use}"
