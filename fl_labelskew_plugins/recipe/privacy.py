"""Differential privacy as a recipe has it: what leaves a client with which noise, and how much of it may leave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.policy import OPENING, host_noise, methods, sent

NoiseKind = Literal["gaussian", "laplace", "discrete", "none"]
BUDGET, MULTIPLIER = "privacy_args.budget", "privacy_args.noise_multiplier"


@dataclass(frozen=True)
class Noise:
    """Noise on something that leaves a client.

    Args:
        on: what it is added to, such as ``counts``.
        kind: its distribution; ``discrete``: discrete Gaussian, of all clients of a sum together; ``none``: there is
            none.
        silo: standard deviation, or scale of a Laplace distribution, over how far what it is added to can move where
            all samples of a silo are replaced; 0: no bound.
        claim: the same where one sample is replaced, see ``PrivacyArgs``.
    """

    on: str
    kind: NoiseKind = "none"
    silo: float = 0.0
    claim: float = 0.0


def leaving(recipe: Recipe, samples: int, least: int) -> tuple[list[Noise], list[Noise]]:
    """What leaves a client in the opening exchange, and in each upload, with its noise.

    Numbers of samples, and what follows from them alone, such as numbers of steps, are taken for known.

    Args:
        recipe: as this client runs it.
        samples: training samples of the client.
        least: those of the smallest client, appendix B's ``m``.
    """
    opening, upload = [], []
    for kind, what in sent(recipe):
        if kind == "weights":
            upload.append(_on_weights(recipe, least))
        elif OPENING not in what:
            upload.append(Noise(what))
        else:
            opening.append(on_counts(*count_noise(recipe), samples) if kind == "counts" else Noise(what))
    return opening, upload


def on_counts(scale: float, kind: NoiseKind, samples: int) -> Noise:
    """Noise of this scale on each class count of a client with so many samples.

    A sample replaced by another moves two counts by one; all samples replaced move the counts by ``2 N`` in L1 and by
    ``sqrt(2) N`` in L2 norm at most, for their sum stays.
    """
    if scale == 0:
        return Noise("counts")
    claim = scale / (2 if kind == "laplace" else math.sqrt(2))
    return Noise("counts", kind, claim / max(samples, 1), claim)


def _on_weights(recipe: Recipe, least: int) -> Noise:
    """Noise on an upload: a sum's; or FedRS's, the host's or both; of other methods that protect, none is known."""
    if (multiplier := recipe.privacy.noise_multiplier) is not None:
        return Noise("weights", "discrete", multiplier / 2, multiplier * least / 2)
    params = [method.params for method in methods(recipe)]
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
    """Which of the silos' accuracies a server that sees sums only gets, and where the others are; a log line."""
    if not recipe.validation.per_client:
        return "silos' accuracy: not tested; use validation_args.per_client: true"
    pooled = "pooled over those with send_measures"
    at_server = pooled if recipe.privacy.noise_multiplier is None else "none at the server, as sums have noise"
    return f"silos' accuracy: {at_server}; each in its own folder"


def count_noise(recipe: Recipe) -> tuple[float, Any]:
    """Scale of the noise on class counts that a silo's method has, 0 without, and its kind."""
    for method in methods(recipe):
        if scale := float(getattr(method.params, "count_noise", 0.0)):
            return scale, getattr(method.params, "count_noise_type", "laplace")
    return 0.0, "laplace"


def refused(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What a budget cannot bound: its key, and the rest of a line."""
    budget, level, multiplier = recipe.privacy.budget, recipe.privacy.level, recipe.privacy.noise_multiplier
    opening, upload = leaving(recipe, 1, 1)
    if multiplier is not None:
        beside = [noise.on for noise in upload if noise.on != "weights"]
        if recipe.optimizer.sends_change:
            beside.append(f"the changes that {recipe.train.federated_optimizer} sends")
        if not recipe.comm.secure_aggregation:
            use = "comm_args.secure_aggregation: true, or upload_clip and upload_sigma of FedRS"
            yield MULTIPLIER, f"{multiplier:g} is noise on a sum, and uploads leave one by one; use {use}"
        elif beside:
            use = "use a method and an optimiser that send weights alone, or no noise"
            yield MULTIPLIER, f"{multiplier:g} is noise on weights alone, not on {', '.join(beside)}; {use}"
    if budget is None:
        return
    everything = [*opening, *upload]
    if free := [noise.on for noise in everything if not getattr(noise, level)]:
        use = "use noise on it (method_args.count_noise; upload_clip and upload_sigma of FedRS), or no budget"
        if level == "silo" and not [noise for noise in everything if not noise.claim]:
            use = "use level: claim, or upload_clip of FedRS"
        yield BUDGET, f"epsilon {budget.epsilon:g} at level {level} does not bound {', '.join(free)}; {use}"
