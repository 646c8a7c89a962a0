"""FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry.contracts import ClientView, Federation, Method
from pydantic import Field, model_validator
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import Scaling, noise_of, on_device, on_grid, restricted_logits


def private_update(
    update: Mapping[str, Tensor], *, clip: float, sigma: float, generator: np.random.Generator
) -> dict[str, Tensor]:
    r"""Clip an update's norm, then add Gaussian noise to every value (appendix B).

    .. math:: \Delta \leftarrow \min(L, \lVert\Delta\rVert) \, \Delta / \lVert\Delta\rVert + \mathcal N(0, \sigma^2 I)

    The norm is over all floating-point tensors; others are unchanged. Values with noise are rounded, see
    :func:`.ops.on_grid`. Batch normalisation's running variance gets noise too; the caller must make
    sure that start and update together give no negative variance.

    Args:
        update: upload minus the start of the round.
        clip: ``L``.
        sigma: standard deviation of the noise; 0 only clips.
        generator: the only source of the noise, drawn tensor by tensor.

    >>> unused = np.random.Generator(np.random.PCG64())
    >>> private_update({"w": torch.tensor([3.0, 4.0])}, clip=1.0, sigma=0.0, generator=unused)["w"]
    tensor([0.6000, 0.8000])
    """
    floating = [tensor for tensor in update.values() if tensor.is_floating_point()]
    if not floating:
        return dict(update)
    # float64, because the squares of a large float32 update overflow
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in floating]
    factor = (clip / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1)  # clip / 0 is inf, so 1
    private = {}
    for name, tensor in update.items():
        private[name] = tensor
        if tensor.is_floating_point():
            private[name] = (tensor.double() * factor).to(tensor.dtype)
            if sigma:
                noise = sigma * torch.from_numpy(generator.standard_normal(tensor.shape))
                private[name] = on_grid(private[name].double() + noise.to(tensor.device), sigma).to(tensor.dtype)
    return private


def privacy_epsilon(*, clip: float, sigma: float, delta: float, min_samples: int) -> float:
    r"""Epsilon of one upload in one round (appendix B), without composition over rounds.

    .. math:: \epsilon = \sqrt{2 \ln(1.25 / \delta)} \; \frac{2 L}{m} \; / \; \sigma

    The proof of the Gaussian mechanism requires an epsilon below 1; larger values follow the paper, without proof.

    Args:
        clip: ``L``.
        sigma: standard deviation of the noise.
        delta: probability that the bound fails.
        min_samples: ``m``, training samples of the smallest client.

    >>> round(privacy_epsilon(clip=20, sigma=0.1, delta=0.01, min_samples=400), 2)
    3.11
    """
    return math.sqrt(2 * math.log(1.25 / delta)) * (2 * clip / min_samples) / sigma


class FedRS(Method):
    r"""Restricted softmax in local training.

    Equation 8, the restricted softmax:

    .. math::
        p_{i,c} = \frac{\exp(\alpha_c z_{i,c})}{\sum_j \exp(\alpha_j z_{i,j})}, \quad
        \alpha_c = 1 \text{ if } n_c \ge \text{min\_count}, \text{ else } \alpha

    Equation 10, the effect of a training step on the proxy ``w`` of a missing class:

    .. math:: w_c \leftarrow w_c - \alpha \, \eta \sum_i p_{i,c} \, h_i

    All uploads have the same weight (algorithm 1). With ``alpha: 1``, the loss is bit-identical to
    plain cross-entropy.
    """

    class Params(params.Params):
        alpha: float = Field(0.5, ge=0, le=1, description="factor on the logits of missing classes; 1: plain softmax")
        min_count: int = Field(
            1, ge=1, description="a class with fewer samples is missing (paper: FEMNIST 2, Shakespeare 20)"
        )
        scaling: Scaling = Field(
            "indicator", description="indicator: eq. 8; proportional: alpha + (1 - alpha) n_c / max n (authors' code)"
        )
        upload_clip: float | None = Field(
            None, gt=0, description="private upload: largest norm L of an update (paper: 20)"
        )
        upload_sigma: float | None = Field(
            None, gt=0, description="private upload: std of the noise per value (paper: 0.1)"
        )
        upload_delta: float | None = Field(
            None, gt=0, lt=1, description="private upload: delta of the reported bound; default 0.01"
        )

        @model_validator(mode="after")
        def _noise_needs_clip(self) -> FedRS.Params:
            for name in ("upload_sigma", "upload_delta"):
                if self.upload_clip is None and getattr(self, name) is not None:
                    raise ValueError(f"{name} needs upload_clip: without a largest norm, noise gives no privacy bound")
            if self.upload_delta is not None and self.upload_sigma is None:
                raise ValueError("upload_delta needs upload_sigma: without noise there is no privacy bound")
            return self

    paper = (
        "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021, "
        "https://doi.org/10.1145/3447548.3467254"
    )
    corrects = "missing classes"
    aggregation = "uniform"

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """Equation 8."""
        p, counts = self.params, on_device(client, "counts", client.counts, logits.device)
        return restricted_logits(logits, counts, alpha=p.alpha, min_count=p.min_count, scaling=p.scaling)

    def logits_only(self) -> bool:
        return not self.protects()

    def protects(self) -> bool:
        return self.params.upload_clip is not None

    def protect(self, update: dict[str, Tensor], client: ClientView) -> dict[str, Tensor]:
        """Appendix B."""
        p = self.params
        return private_update(update, clip=p.upload_clip, sigma=p.upload_sigma or 0.0, generator=noise_of(client))

    def report(self, federation: Federation) -> dict[str, Any]:
        p = self.params
        if p.upload_sigma is None:
            return {}
        delta = 0.01 if p.upload_delta is None else p.upload_delta
        least = federation.min_samples
        epsilon = privacy_epsilon(clip=p.upload_clip, sigma=p.upload_sigma, delta=delta, min_samples=least)
        return {"privacy": {"epsilon": epsilon, "delta": delta, "holds_for": "one upload of one client in one round"}}

    def deviations(self) -> list[str]:
        if self.params.scaling == "proportional":
            return ["scaling proportional: rare observed classes are scaled (authors' code); eq. 8 uses an indicator"]
        return []
