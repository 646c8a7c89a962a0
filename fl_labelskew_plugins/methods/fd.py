"""FD: Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under Non-IID Data.

Algorithm 1, federated distillation, without augmentation. A client subtracts its own outputs from the sum only if its
state, that of its last accepted upload, is from the same round.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method, Total
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import class_sums, full, keep_private

SUMS, TEACHER = "fd.sums", "fd.teacher"


def distillation(logits: Tensor, labels: Tensor, teacher: Tensor, known: Tensor) -> Tensor:
    """Distance of each sample's output from the mean output for its label (algorithm 1, line 4; see :class:`FD`).

    Args:
        logits: ``(B, C)``.
        labels: ``(B,)`` int64.
        teacher: ``(C, C)``, mean output for each label.
        known: ``(C,)`` bool, labels with a mean output; samples of other labels count 0.

    >>> z, f = torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 0.0], [9.0, 9.0]])
    >>> distillation(z, torch.tensor([0]), f, torch.tensor([True, False]))
    tensor(0.6931)
    """
    z, target = full(logits), full(teacher).masked_fill(~known[:, None], 0)[labels]
    distances = -(target.softmax(dim=1) * functional.log_softmax(z, dim=1)).sum(dim=1)
    return distances.masked_fill(~known[labels], 0).mean()


def without_own(total: Tensor, senders: Tensor, sent: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    r"""A client's teacher ``(C, C)``: the mean of the other clients' means (algorithm 1, the server's part).

    .. math:: \hat F^{(k)}_c = \frac{\sum_j \bar F^{(j)}_c - \bar F^{(k)}_c}{M_c - 1}

    Args:
        total: ``(C, C)``, sum of the means of all senders.
        senders: ``(C,)``, number of senders per label, ``M_c``.
        sent: ``(C, C)``, means that this client sent.
        counted: ``(C,)`` bool, labels whose total includes them.

    The second result, ``(C,)`` bool, are the labels that another client sent.

    >>> without_own(torch.tensor([[5.0], [3.0]]), torch.tensor([2, 1]), torch.ones(2, 1), torch.tensor([True, True]))
    (tensor([[4.],
            [2.]]), tensor([ True, False]))
    """
    others = senders - counted.to(senders.dtype)
    sums = total - sent.masked_fill(~counted[:, None], 0)
    return sums / others.clamp(min=1)[:, None], others > 0


class FD(Method):
    r"""Federated distillation of mean outputs, in addition to averaged weights.

    Algorithm 1: the mean output ``F`` of the other clients for a label is the teacher for a client's outputs:

    .. math::
        \mathcal{L} = \mathcal{L}_{ce} - \gamma \, \frac{1}{B} \sum_n \sum_c \sigma(\hat F_{y_n})_c \log \sigma(z_n)_c

    A class that no other client holds has no teacher. With ``gamma: 0``, the loss is plain cross-entropy, and clients
    send nothing.
    """

    class Params(params.Params):
        gamma: float = Field(0.1, ge=0, description="weight of the distillation; the default is ours; 0: none")

    sends: ClassVar[Mapping[str, str]] = {"outputs": "prototypes", "held": "prototypes"}
    paper = (
        "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under Non-IID "
        "Private Data, NeurIPS workshop 2018, https://arxiv.org/abs/1811.11479"
    )

    def before_round(self, client: ClientView) -> None:
        if self.params.gamma == 0 or "total" not in client.shared:
            return
        total, senders, round = (client.shared[name] for name in ("total", "senders", "round"))
        sent, counted = torch.zeros_like(total), torch.zeros_like(senders, dtype=torch.bool)
        if (last := client.state) and bool(last["round"].to(round) == round):
            sent, counted = last["outputs"].to(total), last["held"].to(senders) > 0
        teacher, known = without_own(total, senders, sent, counted)
        client.scratch[TEACHER] = teacher.to(client.counts.device), known.to(client.counts.device)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        if self.params.gamma == 0:
            return {}
        sums = class_sums(batch.logits.detach(), batch.labels, len(client.counts))
        old = client.scratch.get(SUMS)
        client.scratch[SUMS] = sums if old is None else (old[0] + sums[0], old[1] + sums[1])
        if TEACHER not in client.scratch:
            return {}
        teacher, known = client.scratch[TEACHER]
        return {"distillation": self.params.gamma * distillation(batch.logits, batch.labels, teacher, known)}

    def contribution_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        classes = federation.num_classes
        return {} if self.params.gamma == 0 else {"outputs": (classes, classes), "held": (classes,)}

    def contribute(self, client: ClientView) -> dict[str, Tensor]:
        if client.scratch.get(SUMS) is None:
            return {}
        sums, counts = client.scratch[SUMS]
        return {"outputs": sums / counts.clamp(min=1)[:, None], "held": (counts > 0).long()}

    def after_round(self, client: ClientView) -> None:
        if client.sends and (sent := self.contribute(client)):
            keep_private(client, "", sent)
            client.state["round"] = torch.tensor(client.round)

    def combine(self, total: Total, shared: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        rest = {name: tensor for name, tensor in shared.items() if name not in ("total", "senders", "round")}
        if not {"outputs", "held"} <= total.tensors.keys():
            return rest  # from an older sum, clients could not subtract their own outputs
        outputs, held = total.tensors["outputs"], total.tensors["held"]
        return {**rest, "total": outputs, "senders": held, "round": torch.tensor(total.round)}

    def deviations(self) -> list[str]:
        line = "weights are averaged in addition to outputs; in the paper clients send only outputs"
        return [line] if self.params.gamma > 0 else []
