"""FedShift: Federated Learning with Classifier Shift for Class Imbalance.

A single client, or ``smoothing = 1e30``, is plain cross-entropy bit for bit, because distributions are computed in
float64 and rounded once.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from fl_labelskew_registry.contracts import Aggregation, ClientView, Federation, Method, Total
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.ops import check_choice, check_per_class, full, noise_of, on_device


def smoothed_distribution(counts: Tensor, *, smoothing: float | Tensor) -> Tensor:
    """Smoothed label distribution of clients (footnote 2, eq. 5); raise ValueError unless ``smoothing > 0``.

    Args:
        counts: ``(C,)`` or ``(K, C)``; a client without samples gets a uniform distribution.
        smoothing: ``a``: a number, or a tensor that broadcasts with ``counts``, such as ``(K, 1)``.

    >>> smoothed_distribution(torch.tensor([3, 0]), smoothing=1.0)
    tensor([0.8000, 0.2000])
    """
    if not isinstance(smoothing, torch.Tensor) and smoothing <= 0:
        raise ValueError(f"Expected argument `smoothing` to be above 0 but got {smoothing}: ln 0 has no value.")
    n = counts.double()
    total = n.sum(dim=-1, keepdim=True)
    # without samples, a may be 0 (smoothing_fraction), and 0 / 0 is NaN
    smoothed = ((n + smoothing) / (total + smoothing * n.shape[-1])).where(total > 0, 1 / n.shape[-1])
    return smoothed.to(full(counts.new_empty(0)).dtype)


def smoothed_counts(counts: Tensor, *, smoothing: float | Tensor) -> Tensor:
    """A client's term of the global prior, ``N_k P_k(c)``, in float64; arguments as in :func:`smoothed_distribution`.

    >>> smoothed_counts(torch.tensor([3, 0]), smoothing=1.0)
    tensor([2.4000, 0.6000], dtype=torch.float64)
    """
    return counts.sum(dim=-1, keepdim=True) * smoothed_distribution(counts.double(), smoothing=smoothing)


def global_prior(smoothed: Tensor) -> Tensor:
    """Label distribution of the whole federation (below eq. 5), ``(C,)`` float32; uniform without samples.

    ``smoothed``: ``(C,)`` float64, the sum of :func:`smoothed_counts` over **all** clients.

    >>> clients = [smoothed_counts(torch.tensor(n), smoothing=1.0) for n in ([3, 0], [0, 1])]
    >>> global_prior(sum(clients))
    tensor([0.6833, 0.3167])
    """
    total = smoothed.sum()
    return (smoothed / total).where(total > 0, 1 / len(smoothed)).float()


def shifted_logits(logits: Tensor, counts: Tensor, prior: Tensor, *, smoothing: float | Tensor) -> Tensor:
    """Add the classifier shift of a client (eq. 4 and 5).

    Args:
        logits: ``(B, C)``.
        counts: ``(C,)``, the client's training samples per class.
        prior: ``(C,)``, from :func:`global_prior` with the same smoothing.
        smoothing: ``a`` above 0: a number, or a tensor of shape ``()`` or ``(1,)``.

    >>> shifted_logits(torch.zeros(1, 2), torch.tensor([3, 0]), torch.tensor([0.5, 0.5]), smoothing=1.0)
    tensor([[ 0.4700, -0.9163]])
    """
    check_per_class("counts", counts, logits)
    check_per_class("prior", prior, logits)
    dtype = full(logits.new_empty(0)).dtype
    local = smoothed_distribution(counts.to(dtype), smoothing=smoothing)
    return logits + (local / prior.to(dtype)).log()


def noisy_counts(
    counts: Tensor, *, scale: float, noise: Literal["laplace", "gaussian"], generator: np.random.Generator
) -> Tensor:
    """A client's class counts ``(C,)`` with noise, rounded to integers of at least 0 (see :func:`.ops.on_grid`).

    ``scale``: ``b`` of Laplace noise (standard deviation ``sqrt(2) b``), or standard deviation of Gaussian noise.
    """
    check_choice("noise", noise, ("laplace", "gaussian"))
    draw = generator.laplace if noise == "laplace" else generator.normal
    drawn = torch.from_numpy(draw(0.0, scale, tuple(counts.shape)))
    return (counts + drawn.to(counts.device)).round().clamp(min=0).to(counts.dtype)


def counts_epsilon(scale: float) -> float:
    r"""Epsilon of class counts with Laplace noise of scale ``b``, in samples.

    .. math:: \epsilon = 2 / b

    Dwork, McSherry, Nissim, Smith, TCC 2006, proposition 1. Replacing one sample changes two counts by one.

    >>> counts_epsilon(4.0)
    0.5
    """
    return 2 / scale


class PriorParams(params.Params):
    """Smoothing of label distributions, and noise on revealed counts."""

    smoothing: float = Field(1.0, gt=0, description="constant a: samples added to each class of a client's histogram")
    smoothing_fraction: float | None = Field(
        None,
        gt=0,
        description="constant a as a fraction of the client's samples, instead of smoothing; use 0.1 with pcdd",
    )
    count_noise: float = Field(
        0.0, ge=0, le=1e9, description="scale b (laplace) or std (gaussian) of the noise on revealed counts"
    )
    count_noise_type: Literal["laplace", "gaussian"] = Field(
        "laplace", description="laplace: epsilon = 2 / count_noise; gaussian: no bound is reported"
    )


class KnownPrior(Method):
    """Base of FedShift and reweighting: an opening exchange gives all clients the global prior."""

    corrects = "class counts"
    silo_choices = ("count_noise", "count_noise_type")
    sends: ClassVar[Mapping[str, str]] = {"smoothed": "counts"}

    def smoothing_of(self, counts: Tensor) -> float | Tensor:
        """``a`` of a client: a number, or ``(1,)``."""
        fraction = self.params.smoothing_fraction
        if fraction is None:
            return float(self.params.smoothing)
        smoothing: Tensor = full(counts).sum(dim=-1, keepdim=True) * fraction
        return smoothing

    def opening_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return {"smoothed": (federation.num_classes,)}

    def opening(self, client: ClientView) -> dict[str, Tensor]:
        p, counts = self.params, client.counts
        if p.count_noise > 0:
            counts = noisy_counts(counts, scale=p.count_noise, noise=p.count_noise_type, generator=noise_of(client))
        return {"smoothed": smoothed_counts(counts, smoothing=self.smoothing_of(counts))}

    def open(self, total: Total) -> dict[str, Tensor]:
        """The global prior. A sum that is not positive (rounding, or a dishonest client) counts as one sample."""
        smoothed = total.tensors["smoothed"]
        if total.samples and smoothed.sum() > 2 * total.samples:  # more than noise explains
            what = "the sum of all class counts in the opening is more than twice the number of training samples"
            log.warn(f"{what}; some counts are wrong, or very noisy")
        return {"prior": global_prior(smoothed.where(smoothed > 0, 1.0))}

    def report(self, federation: Federation) -> dict[str, Any]:
        p = self.params
        if p.count_noise == 0 or p.count_noise_type != "laplace":
            return {}
        scope = "the counts that a client reveals once per run, if one of its samples is replaced by another"
        return {"privacy": {"epsilon": counts_epsilon(p.count_noise), "delta": 0.0, "holds_for": scope}}

    def deviations(self) -> list[str]:
        return ["count_noise: the prior comes from noisy class counts"] if self.params.count_noise > 0 else []


class FedShift(KnownPrior):
    r"""Classifier shift in local training.

    Equations 4 and 5, with the smoothing of footnote 2; the paper gives no value of its constant ``a``:

    .. math::
        \mathcal{L} = \text{CE}(z + s_k, y), \quad s_{k,c} = \ln \frac{P_k(c)}{P(c)}, \quad
        P(c) = \sum_k \frac{N_k}{N} P_k(c), \quad P_k(c) = \frac{n_{kc} + a}{N_k + a C}

    Algorithm 1, line 9, weights uploads by the samples of **all** clients, so partial rounds move the model less:

    .. math:: w^{t+1} = w^t + \sum_{k \in M_t} \frac{N_k}{N} (w_k^{t+1} - w^t)

    In an opening exchange the server computes ``P`` from the sum of the smoothed class counts of all clients.
    With ``smoothing: 1.0e+30``, all shares are equal, and the loss is bit-identical to plain cross-entropy.
    """

    class Params(PriorParams):
        denominator: Literal["population", "participants"] = Field(
            "population",
            description="N of the weights N_k / N: samples of all clients (algorithm 1) or of the participants",
        )

    paper = "Federated Learning with Classifier Shift for Class Imbalance, arXiv 2023, https://arxiv.org/abs/2304.04972"
    aggregation: Aggregation = "population"
    aggregation_key = "denominator"

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        if self.params.denominator == "participants":
            self.aggregation = "samples"

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """Equation 4; the client's own counts have no noise."""
        counts = on_device(client, "counts", client.counts, logits.device)
        prior = on_device(client, "prior", client.shared["prior"], logits.device)
        return shifted_logits(logits, counts, prior, smoothing=self.smoothing_of(counts))

    def deviations(self) -> list[str]:
        lines = super().deviations()
        if self.params.denominator == "participants":
            lines.append(
                "denominator: participants: weights relative to the samples of the round's clients; algorithm 1: of all"
            )
        return lines
