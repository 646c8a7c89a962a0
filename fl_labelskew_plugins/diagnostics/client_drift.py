"""Client drift: norm of each client's update in a round, and its cosine with the global update."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import Curves, Diagnostic, RunInfo, by_round
from fl_labelskew_plugins.tensors import Weights

IN_MEMORY = 2**28
"""Maximum of bytes of a round's updates in memory; more go to a temporary file in the run's folder."""


def norm_and_cosine(update: Tensor, aggregated: Tensor) -> tuple[float, float | None]:
    r"""Norm of a client's update ``(D,)``, and its cosine with the aggregated update; None if one of them is 0.

    .. math:: \Delta_k = y_k - x, \quad \lVert \Delta_k \rVert_2, \quad
        \cos_k = \frac{\Delta_k \cdot \Delta}{\lVert \Delta_k \rVert_2 \lVert \Delta \rVert_2}

    with the round's start weights *x*, the client's weights *y_k* and the change of the global model, Delta
    (Karimireddy et al., SCAFFOLD, ICML 2020, https://arxiv.org/abs/1910.06378, section 3).

    >>> norm_and_cosine(torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0]))  # 3 * 2 / (5 * 2)
    (5.0, 0.6)
    """
    a, b = update.double(), aggregated.double()
    norm, other = float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(b))
    return norm, float(a @ b) / (norm * other) if norm and other else None


class ClientDrift(Diagnostic):
    """Norms and cosines of each upload's update, and the norm of the global one."""

    def __init__(self, name: str, run: RunInfo, folder: Path) -> None:
        super().__init__(name, run, folder)
        self._parameters = [name for name, _ in run.trainer.model.named_parameters()]
        self._start: Weights = {}
        self._clients: list[int] = []
        self._updates = tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder.parent))  # noqa: SIM115

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """Store the client's update until the round's end."""
        if not self._clients:
            self._updates.seek(0)
        self._start = start
        self._clients.append(client)
        self._updates.write(self._change(upload).numpy().data)

    def aggregated(self, round: int, weights: Weights) -> None:
        """Add a line per client, and one for the global model."""
        if not self._clients:
            return
        whole = self._change(weights)
        self._updates.seek(0)
        for client in self._clients:
            update = torch.frombuffer(bytearray(self._updates.read(4 * len(whole))), dtype=torch.float32)
            norm, cosine = norm_and_cosine(update, whole)
            self.lines.append({"client": client, "norm": norm, "cosine": cosine})
        self.lines.append({"client": None, "norm": norm_and_cosine(whole, whole)[0]})
        self._clients.clear()
        self._start = {}

    def _change(self, weights: Weights) -> Tensor:
        """Change of the parameters since the round's start, ``(D,)`` float32 on the CPU."""
        return torch.cat([(weights[name] - self._start[name]).flatten().float().cpu() for name in self._parameters])

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        """Norms and cosines."""
        clients, of_global = ([line for line in lines if (line["client"] is None) == kind] for kind in (False, True))
        return {
            "norm of the update": {"clients": by_round(clients, "norm"), "global model": by_round(of_global, "norm")},
            "cosine with the global update": {"clients": by_round(clients, "cosine")},
        }
