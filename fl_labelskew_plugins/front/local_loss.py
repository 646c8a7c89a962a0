"""The local loss of a method, for a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fl_labelskew_registry import Batch, ClientView, Federation, LabelSkewError, Method, catalog, mistake
from fl_labelskew_registry.contracts import CALIBRATION_ONLY
from fl_labelskew_registry.plugin import hooks
from torch import Tensor, nn

from fl_labelskew_plugins.machine.text import few
from fl_labelskew_plugins.trained.network import create

LOCAL = CALIBRATION_ONLY - {"opening", "opening_shapes", "open", "contribution_shapes"} | {"loss", "terms"}
"""Hooks of a method that needs nothing from the server or from other clients."""


class LocalLoss(nn.Module):
    """A method's loss at one client, see :func:`local_loss`."""

    counts: Tensor

    def __init__(self, name: str, method: Method, counts: Tensor) -> None:
        super().__init__()
        self.method, self._name = method, name
        self.register_buffer("counts", counts, persistent=False)
        classes, samples = len(counts), int(counts.sum())
        self._federation = Federation(1, 1, 1, 1, classes, 0, samples, samples, 0)

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor | None = None) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            logits: ``(B, C)``.
            labels: ``(B,)`` int64.
            features: ``(B, d)``, the input of the last layer; needed by methods that add terms, such as ``feddecorr``.
        """
        if features is None:
            if self.method.uses("terms"):
                raise LabelSkewError(f"{self._name} needs features: call loss(logits, labels, features)")
            features = logits[:, :0]
        batch = Batch(features, features, logits, labels)
        generator = torch.Generator().manual_seed(0)
        client = ClientView(0, 0, self.counts, {}, {}, generator, 1, self._federation)
        return torch.stack([*self.method.loss(batch, client).values()]).sum()


def local_loss(method: str, *, counts: Sequence[int] | Tensor, **params: Any) -> LocalLoss:
    """The training loss of a method that needs no exchange with the server or with other clients.

    >>> loss = local_loss("fedlc", counts=[16, 1], tau=1.0)
    >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))  # log(1 + exp(-0.5)): the margin of class 1 is larger
    tensor(0.4741)

    Args:
        method: its name, such as ``fedlc``, ``fedrs`` or ``feddecorr``.
        counts: training samples per class at this client, ``(C,)``.
        params: parameters of the method, such as ``tau``; ``labelskew methods NAME`` lists them.

    Returns:
        An ``nn.Module``: ``loss(logits, labels)``, or ``loss(logits, labels, features)``. Use it only in training.

    Raises:
        LabelSkewError: an unknown method or parameter, wrong counts, or a method with an exchange.
    """
    plugin = catalog.load("methods", method)
    made: Method = create(plugin, params, f"{method}: ")
    local = LOCAL if made.protects() else LOCAL | {"protect"}
    if used := [hook for hook in hooks(Method) if hook not in local and made.uses(hook)]:
        problem = f"the method exchanges data or keeps models between rounds ({few(used)})"
        raise mistake(f"local_loss {method}", problem, "fl.run or fl.simulate")
    values = torch.as_tensor(counts)
    if values.ndim != 1 or not len(values) or values.is_floating_point() or values.min() < 0:
        raise mistake("local_loss: counts", "are not samples per class", "whole numbers from 0, one per class")
    return LocalLoss(method, made, values.long())
