"""MOON: Model-Contrastive Federated Learning. The paper has temperature 0.5."""

from typing import Any, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import frozen_model, full, keep_private, private_model, unit

PREFIX = "moon."
TEACHERS = "moon.teachers"


def model_contrast(features: Tensor, positive: Tensor, negative: Tensor, *, temperature: float = 0.5) -> Tensor:
    """Contrast features with those of two other models for the same samples (eq. 3, see :class:`MOON`).

    Args:
        features: ``(B, d)`` of the trained model.
        positive: ``(B, d)`` of the server's model.
        negative: ``(B, d)`` of the client's last model.
        temperature: tau.

    >>> z = torch.tensor([[1.0, 0.0]])
    >>> model_contrast(z, z, torch.tensor([[0.0, 1.0]]), temperature=1.0)
    tensor(0.3133)
    """
    towards = unit(negative) - unit(positive)
    return softplus((unit(features) * towards).sum(dim=1) / temperature).mean()


def projected(features: Tensor, client: ClientView, model: nn.Module | None = None) -> Tensor:
    """Features ``(B, d)`` after the projection head of the network or of ``model``, if there is one."""
    head = client.modules(model).get("projection")
    return features if head is None else head(full(features))


class MOON(Method):
    r"""Model-contrastive loss in local training.

    Equation 3, with the features ``h+`` of the server's model and ``h-`` of the client's own last model, and equation
    4, its sum with cross-entropy:

    .. math::
        \mathcal{L}_{con} = -\log
        \frac{\exp(\cos(h, h^+) / \tau)}{\exp(\cos(h, h^+) / \tau) + \exp(\cos(h, h^-) / \tau)}, \quad
        \mathcal{L} = \mathcal{L}_{ce} + \mu \, \mathcal{L}_{con}

    With ``mu: 0``, the loss is bit-identical to plain cross-entropy. In its first round, a client has no last model,
    so nothing can be contrasted.
    """

    class Params(params.Params):
        mu: float = Field(
            1.0, ge=0, description="weight of the contrastive loss (5 for CIFAR-10; FedMR, tables 9 and 10: 1e-4 to 1)"
        )
        temperature: float = Field(0.5, gt=0, description="of the cosines")
        projection: Literal["none", "mlp"] = Field(
            "none", description="head before the contrast; mlp: two layers, 256 outputs (paper and authors' code)"
        )

    paper = "Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257"

    def shared_modules(self, federation: Federation) -> dict[str, nn.Module]:
        if self.params.projection == "none" or self.params.mu == 0:
            return {}
        d = federation.num_features
        return {"projection": nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 256))}

    def before_round(self, client: ClientView) -> None:
        previous = private_model(client.state, PREFIX)
        if self.params.mu > 0 and previous is not None:
            client.scratch[TEACHERS] = frozen_model(client), frozen_model(client, previous)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        teachers: Any = client.scratch.get(TEACHERS)
        if teachers is None:
            return {}
        with torch.no_grad():
            positive, negative = (projected(teacher.features(batch.inputs), client, teacher) for teacher in teachers)
        features = projected(batch.features, client)
        contrast = model_contrast(features, positive, negative, temperature=self.params.temperature)
        return {"contrast": self.params.mu * contrast}

    def after_round(self, client: ClientView) -> None:
        if self.params.mu > 0 and client.model is not None:
            keep_private(client, PREFIX, client.model.state_dict())

    def deviations(self) -> list[str]:
        if self.params.mu == 0:
            return []
        if self.params.projection == "mlp":
            return ["projection: mlp projects features only for the contrast; in the paper the classifier follows it"]
        return ["the contrast uses the network's features; in the paper it uses a projection head's outputs"]
