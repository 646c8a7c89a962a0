"""Fed-RoD: On Bridging Generic and Personalized Federated Learning for Image Classification.

The generic predictor uses the balanced softmax of Ren et al. (NeurIPS 2020, https://arxiv.org/abs/2007.10740). The
gradient of the personalised one does not reach the generic part. The personalised model has both heads merged.
``missing: mask`` sets the logits of classes without samples to minus infinity, the limit of ``gamma log n`` for
``n`` to 0. It also does this with ``gamma = 0``.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import (
    Missing,
    check_choice,
    check_per_class,
    full,
    keep_private,
    on_device,
    private_model,
)

HEAD = "fedrod.head."
MODEL = "fedrod.model."


def balanced_logits(logits: Tensor, counts: Tensor, *, gamma: float = 1.0, missing: Missing = "one") -> Tensor:
    """Add ``gamma`` times the logarithm of each class's count: balanced softmax, see :class:`FedRoD`.

    Args:
        logits: ``(B, C)``.
        counts: ``(C,)``, the client's training samples per class.
        gamma: strength; 1 is balanced softmax, 0 adds nothing.
        missing: ``one`` counts a class without samples as one sample; ``mask`` sets its logit to minus infinity.

    >>> balanced_logits(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([2, 1, 0]))
    tensor([[1.6931, 1.0000, 1.0000]])
    >>> balanced_logits(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([2, 1, 0]), missing="mask")
    tensor([[1.6931, 1.0000,   -inf]])
    """
    check_choice("missing", missing, ("one", "mask"))
    check_per_class("counts", counts, logits)
    if gamma != 0:
        logits = logits + gamma * counts.clamp(min=1).to(full(logits.new_empty(0)).dtype).log()
    return logits.masked_fill(counts <= 0, -torch.inf) if missing == "mask" else logits


class FedRoD(Method):
    r"""Balanced softmax for the uploaded model, and a private head.

    The generic predictor is trained with the balanced softmax. The personalised predictor, which has the private
    head ``V``, is trained with plain cross-entropy:

    .. math:: \mathcal{L} = \text{CE}(z + \gamma \ln n, y) + \lambda_p \, \text{CE}(z + V h, y)

    With ``gamma: 0`` and ``private: 0``, the loss is bit-identical to plain cross-entropy. With ``gamma: 0`` and any
    other ``private``, only the upload is bit-identical to that of plain cross-entropy.
    """

    class Params(params.Params):
        gamma: float = Field(1.0, ge=0, description="strength of the balanced softmax; 0: plain softmax")
        missing: Missing = Field(
            "one", description="class without samples; one: counts as one sample; mask: not in the softmax"
        )
        private: float = Field(1.0, ge=0, description="weight of the private head's cross-entropy; 0: no private head")

    paper = (
        "On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022, "
        "https://arxiv.org/abs/2107.00778"
    )
    corrects = "class counts"

    def before_round(self, client: ClientView) -> None:
        if self.params.private == 0 or client.model is None:
            return
        generic = cast("nn.Linear", client.model.classifier)
        # skip_init draws no start values: they are unused, and dropout draws from the same generator
        bias = generic.bias is not None
        size = generic.in_features, generic.out_features
        head: nn.Module = nn.utils.skip_init(nn.Linear, *size, bias=bias)  # type: ignore[no-untyped-call]
        kept = private_model(client.state, HEAD) or {k: torch.zeros_like(v) for k, v in head.state_dict().items()}
        head.load_state_dict(kept)
        client.scratch[HEAD] = head.to(generic.weight.device)

    def private_parameters(self, client: ClientView) -> Sequence[nn.Parameter]:
        return list(client.scratch[HEAD].parameters()) if HEAD in client.scratch else []

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        counts = on_device(client, "counts", client.counts, logits.device)
        return balanced_logits(logits, counts, gamma=self.params.gamma, missing=self.params.missing)

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        terms = super().loss(batch, client)
        if HEAD not in client.scratch:
            return terms
        both = batch.logits.detach() + client.scratch[HEAD](full(batch.features.detach()))
        return {**terms, "private": self.params.private * cross_entropy(both, batch.labels)}

    def after_round(self, client: ClientView) -> None:
        if HEAD not in client.scratch or client.model is None:
            return
        head = client.scratch[HEAD].state_dict()
        private = {f"classifier.{name}": tensor for name, tensor in head.items()}
        weights = client.model.state_dict()
        keep_private(client, HEAD, head)
        keep_private(client, MODEL, {k: v + private[k] if k in private else v for k, v in weights.items()})

    def private_logits(self, inputs: Tensor, client: ClientView) -> Tensor:
        if HEAD not in client.scratch:
            return super().private_logits(inputs, client)
        assert client.model is not None
        features = client.model.features(inputs)  # type: ignore[operator]
        logits: Tensor = client.model.classifier(features) + client.scratch[HEAD](features)  # type: ignore[operator]
        return logits

    def personalised(self, state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return private_model(state, MODEL)
