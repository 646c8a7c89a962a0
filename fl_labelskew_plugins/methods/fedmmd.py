"""FedMMD: Two-Stream Federated Learning: Reduce the Communication Costs.

X. Yao, C. Huang, L. Sun. VCIP 2018. https://doi.org/10.1109/VCIP.2018.8698609

A client keeps the server's model beside the one that it trains, frozen, and the maximum mean discrepancy of what both
make of a batch is added to cross-entropy (FedFusion, of the same authors, is https://arxiv.org/abs/1908.05891).

The paper was not at hand, so no equation numbers are given. The authors' public code compares logits with 19 fixed
bandwidths (``on: logits``, ``bandwidths: fixed``; it never lets the loss fall below 1e-4, which has no gradient and is
left out) and has 0.1 as its weight for MNIST, the default here; in the published version that line is replaced by a
squared distance. The default compares features, with bandwidths around the mean distance, as deep adaptation networks
do; its gradient does not fade as both models come near, so that large weights overshoot. FedRS (tables 1 and 5) takes
the weights 1e-4 and 1e-3.

``lam = 0`` is plain cross-entropy, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import mmd

if TYPE_CHECKING:
    from torch import Tensor

TEACHER = "fedmmd.teacher"
SIGMAS = (*(10.0**k for k in range(-6, 1)), 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, *(10.0**k for k in range(2, 7)))
"""Variances of the 19 Gaussian kernels of the authors' code; twice as much divides the squared distance."""


def two_stream_loss(local: Tensor, frozen: Tensor, *, bandwidths: Literal["mean", "fixed"] = "mean") -> Tensor:
    r"""Discrepancy of the two models' outputs for a batch.

    .. math:: \text{mean: 5 kernels, see } \mathtt{ops.mmd} \qquad
        \text{fixed: } K(x, y) = \sum_i \exp\bigl(-\lVert x - y \rVert^2 / (2 \sigma_i)\bigr)

    Args:
        local: ``(B, d)`` or ``(B, C)`` of the model in training.
        frozen: the same of the server's model.
        bandwidths: ``mean`` or ``fixed``.

    A batch of one sample has no distribution: 0.

    >>> x, y = torch.zeros(2, 1), torch.ones(2, 1)
    >>> round(two_stream_loss(x, y).item(), 4)  # b = 2/3: 10 - 2(exp(-3/8) + exp(-3/4) + exp(-3/2) + exp(-3) + exp(-6))
    7.1299
    >>> two_stream_loss(x[:1], y[:1])
    tensor(0.)
    """
    return mmd(local, frozen, bandwidths=[2 * sigma for sigma in SIGMAS] if bandwidths == "fixed" else None)


class FedMMD(Method):
    r"""Maximum mean discrepancy to the server's model in local training.

    Cross-entropy plus the maximum mean discrepancy, with Gaussian kernels, between the features that the server's
    frozen model (``s``) and the trained model (``t``) make of a batch. A bar is the mean over all pairs:

    .. math::
        \mathcal{L} = \mathcal{L}_{ce} + \lambda \bigl(\bar K_{ss} + \bar K_{tt} - 2 \bar K_{st}\bigr), \quad
        K(x, y) = \sum_i \exp\bigl(-\lVert x - y \rVert^2 / b_i\bigr)

    ``lam: 0`` is plain cross-entropy, bit for bit.
    """

    class Params(params.Params):
        """Options of FedMMD; ``lam: 0`` is plain cross-entropy."""

        lam: float = Field(0.1, ge=0, description="weight of the discrepancy (FedRS, tables 1 and 5: 1e-4, 1e-3)")
        on: Literal["features", "logits"] = Field("features", description="what is compared; authors' code: logits")
        bandwidths: Literal["mean", "fixed"] = Field(
            "mean", description="of the kernels: mean: around the mean squared distance; fixed: authors' code"
        )

    paper = (
        "Two-Stream Federated Learning: Reduce the Communication Costs, VCIP 2018, "
        "https://doi.org/10.1109/VCIP.2018.8698609"
    )

    def before_round(self, client: ClientView) -> None:
        """The server's model, frozen."""
        if self.params.lam > 0 and client.frozen is not None and client.model is not None:
            client.scratch[TEACHER] = client.frozen(client.model.state_dict())

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """The discrepancy."""
        teacher: Any = client.scratch.get(TEACHER)
        if teacher is None:
            return {}
        features = self.params.on == "features"
        with torch.no_grad():
            frozen = teacher.features(batch.inputs) if features else teacher(batch.inputs)
        local = batch.features if features else batch.logits
        return {"mmd": self.params.lam * two_stream_loss(local, frozen, bandwidths=self.params.bandwidths)}

    def deviations(self) -> list[str]:
        """Where this is not the authors' code."""
        p = self.params
        code = {"on": "logits", "bandwidths": "fixed"}
        return [
            f"{name}: {getattr(p, name)}; the authors' code: {value}"
            for name, value in code.items()
            if p.lam > 0 and getattr(p, name) != value
        ]
