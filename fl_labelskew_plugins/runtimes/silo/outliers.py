"""Uploads out of all proportion: norms of what a silo sends, against the others' of the round and its own before.

One finite upload of 3.4e38 is the mean of a round, whatever the others sent. What is refused here is such an upload,
not a clever one: an update may be as large as ``ratio`` medians in any direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import median, median_low

import torch
from torch import Tensor

from fl_labelskew_plugins.engine.aggregate import matching
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.runs.checkpoint import Norms
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights

UPDATE, BUFFERS = "update", "buffers"
ROUNDS = 10
"""Rounds of its own past that a silo's upload is compared with."""


def norms(
    result: LocalResult, old: Weights, parameters: Collection[str], sends: Mapping[str, str], *, sends_change: bool
) -> dict[str, float]:
    """L2 norms of an upload, in double precision, without copies of it.

    Args:
        result: what came, of the form of ``old``.
        old: the model that was sent.
        parameters: names of what is trained.
        sends: see ``Method.sends``; where ``counts`` are among what came, so are sums over so many samples.
        sends_change: whether the upload holds the parameters' changes rather than the parameters.

    Returns:
        ``update``: how far the parameters moved; ``buffers``: how far all else did, without whole numbers; of the
        optimiser's tensors together, and of each of the method's by its name, for each sample where it is a sum over
        samples. Whole numbers are left out.
    """
    totals: dict[str, float] = {}
    for name, value in result.upload.items():
        trained = name in parameters
        totals |= _with(totals, UPDATE if trained else BUFFERS, value, None if trained and sends_change else old[name])
    for name, value in result.contributions.items():
        totals |= _with(totals, OPTIMIZER if name.startswith(f"{OPTIMIZER}/") else name, value, None)
    samples = sum(float(value.sum()) for name, value in result.contributions.items() if sends.get(name) == "counts")
    summed = {name for name in result.contributions if sends.get(name) == "prototypes"} if samples else ()
    return {name: norm / samples if name in summed else norm for name, norm in totals.items()}


def _with(totals: Mapping[str, float], name: str, value: Tensor, old: Tensor | None) -> dict[str, float]:
    if not value.is_floating_point():
        return {}
    parts = matching(value, value if old is None else old)
    distances = (_distance(part, None if old is None else before) for part, before in parts)
    return {name: math.hypot(totals.get(name, 0.0), *distances)}


@torch.no_grad()
def _distance(value: Tensor, old: Tensor | None) -> float:
    """In the tensors' own precision, which is eight times as fast; in double precision where that is too small."""
    before = torch.zeros((), dtype=value.dtype, device=value.device) if old is None else old
    norm = float(torch.dist(value, before))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(value.double() - before.double()))


class Judge:
    """Which uploads of a round may count. What it says depends on which uploads came, not on the order.

    An upload is as it should be where each of its norms is at most ``ratio`` times the median of its silo's last
    :data:`ROUNDS` accepted ones, or of the others' in this round (of an even number the lower middle one, so that one
    of two cannot pull it up); where no other has come, of the others' last accepted ones. Norms of 0 are no measure for
    others. An upload that there is nothing to compare with is accepted.

    Args:
        ratio: ``comm_args.max_update_ratio``; None: all may.
        past: norms of accepted uploads, added to here; entries of the current round or later ones are dropped, as they
            are of a round that broke off.
    """

    def __init__(self, ratio: float | None, past: Norms) -> None:
        self.ratio, self.past = ratio, past
        self._round = -1
        self._now: dict[int, dict[str, float]] = {}

    def begin(self, round: int) -> None:
        """A round begins."""
        self._round, self._now = round, {}
        for client, rounds in self.past.items():
            before = sorted(at for at in rounds if at < round)
            self.past[client] = {at: rounds[at] for at in before[-ROUNDS:]}

    def add(self, client: int, norms: dict[str, float]) -> bool:
        """An upload has come; whether its own silo's past alone is enough for it to be accepted."""
        self._now[client] = norms
        at_once = all(norm <= self._most(self._before(client, name), median) for name, norm in norms.items() if norm)
        if at_once:
            self._accept(client)
        return at_once

    def objection(self, client: int) -> str:
        """What is wrong with an upload, now that all have come that are awaited; empty where it is accepted."""
        for name, norm in self._now[client].items():
            before, others = self._before(client, name), self._others(client, name)
            if norm and (before or others) and norm > max(self._most(before, median), self._most(others, median_low)):
                norms = [f"{median_low(others):.3g} at the others"] if others else []
                norms += [f"{median(before):.3g} at it before"] if before else []
                return f"the norm of its {name} is {norm:.3g}, and mostly {' and '.join(norms)}"
        self._accept(client)
        return ""

    def _accept(self, client: int) -> None:
        self.past.setdefault(client, {})[self._round] = self._now[client]

    def _most(self, norms: list[float], middle: Callable[[list[float]], float]) -> float:
        if self.ratio is None:
            return math.inf
        return self.ratio * middle(norms) if norms else 0.0

    def _before(self, client: int, name: str) -> list[float]:
        rounds = self.past.get(client, {})
        return list(_above_0(rounds[at].get(name) for at in rounds if at < self._round))

    def _others(self, client: int, name: str) -> list[float]:
        now = list(_above_0(norms.get(name) for k, norms in self._now.items() if k != client))
        return now or [before[-1] for k in self.past if k != client and (before := self._before(k, name))]


def _above_0(norms: Iterator[float | None]) -> Iterator[float]:
    return (norm for norm in norms if norm)
