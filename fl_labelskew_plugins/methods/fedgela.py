"""FedGELA: Federated Learning with Bilateral Curation for Partially Class-Disjoint Data.

The formulas are those of the authors' code (MediaBrain-SJTU/FedGELA), since the paper was not available to us.
"""

from typing import Literal

import torch
from fl_labelskew_registry import mistake
from fl_labelskew_registry.contracts import SHARED_MODULES, Batch, ClientView, Federation, Method, ServerView
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import params
from fl_labelskew_plugins.methods.fedetf import linear_classifier, simplex_etf
from fl_labelskew_plugins.ops import full, on_device, unit

NORM = "norm"


def adapted_logits(features: Tensor, counts: Tensor, *, scale: float) -> Tensor:
    """Logits of the fixed simplex classifier, scaled by the client's class distribution; see :class:`FedGELA`.

    Args:
        features: ``(B, d)``, with ``d >= C``.
        counts: ``(C,)``, the client's training samples per class.
        scale: ``s``.

    >>> v = simplex_etf(2, 2)
    >>> adapted_logits(v, torch.tensor([3, 1]), scale=1.0)
    tensor([[ 1.5000, -0.5000],
            [-1.5000,  0.5000]])
    """
    etf = simplex_etf(len(counts), features.shape[1]).to(features.device)
    length = len(counts) * counts / counts.sum().clamp(min=1)
    return scale * length * (features @ etf.T)


class FedGELA(Method):
    r"""A fixed simplex classifier, scaled by the client's class distribution.

    The vectors ``v_c`` of the classes are fixed and form a simplex equiangular tight frame. A client scales them by its
    own class distribution; the server uses them without scales:

    .. math::
        \mathcal{L} = \text{CE}(\hat z, y), \quad \hat z_c = s \, \frac{C \, n_c}{N_k} \, v_c^\top \bar h

    ``features: unit`` divides ``h`` by its length, ``batch_norm`` normalises each dimension, as the authors' code. The
    personalised model of a client is the server's network with the client's scales. A class without samples has the
    logit 0.
    """

    class Params(params.Params):
        scale: float = Field(5.0, gt=0, description="s, factor of the logits (authors' code: 1 / temperature, 5)")
        features: Literal["unit", "batch_norm"] = Field(
            "unit", description="normalisation of the features: length 1, or batch normalisation (authors' code)"
        )

    paper = (
        "Federated Learning with Bilateral Curation for Partially Class-Disjoint Data, NeurIPS 2023, "
        "https://arxiv.org/abs/2405.18972"
    )
    combines = False

    def shared_modules(self, federation: Federation) -> dict[str, nn.Module]:
        features, classes = federation.num_features, federation.num_classes
        if features < classes:
            problem = f"fedgela needs at least as many features as classes, but the network has {features}"
            raise mistake("model_args.model", problem, f"a network with {classes} or more features")
        return {NORM: nn.BatchNorm1d(features)} if self.params.features == "batch_norm" else {}

    def _logits(self, features: Tensor, client: ClientView) -> Tensor:
        norm = client.modules().get(NORM)
        normalised = unit(features) if norm is None else norm(full(features))
        counts = on_device(client, "counts", client.counts, features.device)
        return adapted_logits(normalised, counts, scale=self.params.scale)

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(self._logits(batch.features, client), batch.labels)}

    def private_logits(self, inputs: Tensor, client: ClientView) -> Tensor:
        assert client.model is not None
        return self._logits(client.model.features(inputs), client)  # type: ignore[operator]

    def after_aggregation(self, weights: dict[str, Tensor], server: ServerView) -> dict[str, Tensor]:
        """Set the linear classifier that predicts the same classes as the fixed one on normalised features."""
        old = weights["classifier.weight"]
        factor, shift = torch.ones_like(old[0]), torch.zeros_like(old[0])
        if self.params.features == "batch_norm":
            prefix = f"{SHARED_MODULES}.{NORM}"
            gain, bias, mean, var = (
                weights[f"{prefix}.{name}"] for name in ("weight", "bias", "running_mean", "running_var")
            )
            factor = gain / (var.clamp(min=0) + nn.BatchNorm1d(1).eps).sqrt()
            shift = bias - factor * mean
        scale = self.params.scale
        return {**weights, **linear_classifier(weights, scale * torch.diag(factor), scale * shift)}

    def deviations(self) -> list[str]:
        if self.params.features == "unit":
            return ["features have length 1; the authors' code normalises them by batch normalisation by default"]
        return []
