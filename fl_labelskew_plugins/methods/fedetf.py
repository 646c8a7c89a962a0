"""FedETF: Neural Collapse Inspired Federated Learning with Synthetic and Fixed Classifier.

The formulas are those of the authors' code (ZexiLee/ICCV-2023-FedETF), since the paper was not available to us.
"""

import math
from collections.abc import Mapping

import torch
from fl_labelskew_registry import mistake
from fl_labelskew_registry.contracts import SHARED_MODULES, Batch, ClientView, Federation, Method, ServerView
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import params
from fl_labelskew_plugins.methods.fedrod import balanced_logits
from fl_labelskew_plugins.ops import full, on_device, unit

PROJECTION = "projection"


def simplex_etf(num_classes: int, dimensions: int) -> Tensor:
    r"""Simplex equiangular tight frame: a unit vector for each class, with equal angles that are as large as possible.

    .. math:: V = \sqrt{\frac{C}{C - 1}} \, \left(I - \frac{1}{C} 1 1^\top\right) P^\top

    ``P``: ``dimensions`` x ``C``, with random orthonormal columns that are the same in all processes and for all seeds.

    Args:
        num_classes: ``C``, at least 2.
        dimensions: at least ``C``.

    Returns:
        ``(C, dimensions)``; the product of two different rows is ``-1 / (C - 1)``.

    >>> v = simplex_etf(3, 4)
    >>> v @ v.T
    tensor([[ 1.0000, -0.5000, -0.5000],
            [-0.5000,  1.0000, -0.5000],
            [-0.5000, -0.5000,  1.0000]])
    """
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(dimensions, num_classes, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(random).Q
    centred = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    vectors: Tensor = math.sqrt(num_classes / (num_classes - 1)) * centred @ basis.T
    return vectors.float()


class Projection(nn.Linear):
    """A linear layer, and the factor of the logits."""

    def __init__(self, features: int, dimensions: int, scale: float) -> None:
        super().__init__(features, dimensions)
        self.scale = nn.Parameter(torch.tensor(scale))


class FedETF(Method):
    r"""A fixed simplex classifier on projected features.

    A projection ``A, b`` and the factor ``s`` are trained and averaged with the network; the vectors ``v_c`` of the
    classes are fixed and form a simplex equiangular tight frame ``V``. A client minimises the balanced softmax

    .. math::
        \mathcal{L} = \text{CE}(\hat z + \ln n, y), \quad \hat z = s \, V \frac{u}{\lVert u \rVert}, \quad u = A h + b

    in which classes without samples do not take part. A linear classifier with weights ``s V A`` and bias ``s V b``
    predicts the same class, that of the largest ``\hat z``. The server's model gets this classifier, and a client's own
    model gets it before a test.
    """

    class Params(params.Params):
        dimensions: int | None = Field(
            None, gt=1, description="outputs of the projection, at least the number of classes, which is the default"
        )
        scale: float = Field(1.0, gt=0, description="initial factor s of the logits, which is trained")

    paper = (
        "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed "
        "Classifier, ICCV 2023, https://arxiv.org/abs/2303.10058"
    )
    combines = False

    def shared_modules(self, federation: Federation) -> dict[str, nn.Module]:
        classes, dimensions = federation.num_classes, self.params.dimensions or federation.num_classes
        if dimensions < classes:
            raise mistake("method_args.dimensions", f"{dimensions} for {classes} classes", f"{classes} or more")
        return {PROJECTION: Projection(federation.num_features, dimensions, self.params.scale)}

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        projection = client.modules()[PROJECTION]
        assert isinstance(projection, Projection)
        device = batch.features.device
        etf = on_device(client, "etf", simplex_etf(len(client.counts), projection.out_features), device)
        logits = projection.scale * unit(projection(full(batch.features))) @ etf.T
        counts = on_device(client, "counts", client.counts, device)
        return {"cross_entropy": cross_entropy(balanced_logits(logits, counts, missing="mask"), batch.labels)}

    def after_round(self, client: ClientView) -> None:
        """Set the same classifier in the client's own model, for its test."""
        assert client.model is not None
        client.model.load_state_dict(self._with_classifier(client.model.state_dict()))

    def after_aggregation(self, weights: dict[str, Tensor], server: ServerView) -> dict[str, Tensor]:
        return self._with_classifier(weights)

    def _with_classifier(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        prefix = f"{SHARED_MODULES}.{PROJECTION}"
        a, b, scale = (weights[f"{prefix}.{name}"] for name in ("weight", "bias", "scale"))
        return {**weights, **linear_classifier(weights, scale * a, scale * b)}

    def deviations(self) -> list[str]:
        return ["the authors fine-tune projection and classifier at each client to personalise the model; omitted"]


def linear_classifier(weights: Mapping[str, Tensor], projection: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """The network's classifier with the logits ``V (projection h + bias)``, with ``V`` from :func:`simplex_etf`.

    Args:
        weights: the server's state dict.
        projection: ``(p, d)``.
        bias: ``(p,)``; added if the network's classifier has a bias.
    """
    old = weights["classifier.weight"]
    etf = simplex_etf(len(old), len(projection)).to(old.device)
    new = {"classifier.weight": (etf @ projection).to(old.dtype)}
    return new | ({"classifier.bias": (etf @ bias).to(old.dtype)} if "classifier.bias" in weights else {})
