"""Refuse uploads of extreme size: a single finite upload of 3.4e38 would determine the mean of a round."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, median_high

import torch
from torch import Tensor

from fl_labelskew_plugins.engine.aggregate import VARIANCES, matching
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.runs.checkpoint import Norms
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights

UPDATE, MOVEMENT = "update", "update times the optimiser's numbers"
CHANGES = UPDATE, MOVEMENT, OPTIMIZER  # all silos send these
UNTRAINED = "tensor "  # before the name of a buffer or frozen parameter
STATISTICS = "running means and variances"  # of batch normalisation
ROUNDS = 10  # earlier uploads of a silo with which its upload is compared
ASSUMED = 1000.0  # smallest assumed median, if a silo has no past and too few others have uploaded
LARGE = 30.0  # times the others' median: the server warns of the silo


def norms(
    result: LocalResult, old: Weights, parameters: Collection[str], sends: Mapping[str, str], *, sends_change: bool
) -> dict[str, float]:
    """L2 norms of an upload of the same form as ``old``, without copying it; ``sends``: see ``Method.sends``.

    Returns:
        Norms of the parameters' change (``update``), of the change of batch normalisation's statistics, of each other
        tensor that changes (``tensor NAME``), of all optimiser tensors, of ``update`` times their single numbers if
        ``sends_change``, and of each of the method's tensors. Integer counts and buffers are omitted.
    """
    totals: dict[str, float] = {}
    for name, value in result.upload.items():
        trained = name in parameters
        if value.is_floating_point():
            before = None if trained and sends_change else old[name]
            group = STATISTICS if name.endswith(("running_mean", VARIANCES)) else UNTRAINED + name
            totals |= _with(totals, UPDATE if trained else group, value, before)
    for name, value in result.contributions.items():
        if sends.get(name) != "counts" or value.is_floating_point():
            group = OPTIMIZER if name.startswith(f"{OPTIMIZER}/") else name
            totals |= _with(totals, group, _per_sample(name, value, result.contributions, sends), None)
    if sends_change:
        # the server multiplies the mean change by the optimiser's numbers (FedNova's tau)
        numbers = [
            abs(float(v)) for n, v in result.contributions.items() if n.startswith(f"{OPTIMIZER}/") and not v.dim()
        ]
        totals |= {MOVEMENT: math.prod([totals.get(UPDATE, 0.0), *numbers])} if numbers else {}
    return {name: norm for name, norm in totals.items() if norm or not name.startswith(UNTRAINED)}


def _per_sample(name: str, value: Tensor, tensors: Mapping[str, Tensor], sends: Mapping[str, str]) -> Tensor:
    """For prototypes with counts, each class's sum divided by its number of samples; else the tensor."""
    value = value if value.is_floating_point() else value.double()
    if sends.get(name) != "prototypes":
        return value
    of_part = name.rpartition("/")[0]
    for other, counts in tensors.items():
        if sends.get(other) == "counts" and other.rpartition("/")[0] == of_part and counts.shape == value.shape[:1]:
            return value / counts.clamp(min=1).to(value).reshape(-1, *[1] * (value.dim() - 1))
    return value


def _with(totals: Mapping[str, float], name: str, value: Tensor, old: Tensor | None) -> dict[str, float]:
    parts = matching(value, value if old is None else old)
    distances = (_distance(part, None if old is None else before) for part, before in parts)
    return {name: math.hypot(totals.get(name, 0.0), *distances)}


@torch.no_grad()
def _distance(value: Tensor, old: Tensor | None) -> float:
    """Distance in the tensors' precision, which is eight times as fast; in double precision on overflow."""
    before = torch.zeros((), dtype=value.dtype, device=value.device) if old is None else old
    norm = float(torch.dist(value, before))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(value.double() - before.double()))


@dataclass
class Judge:
    """Decides which uploads of a round are accepted, independently of their order: see docs/silo_failures.md.

    Norms of 0 are not refused. ``ratio``: ``comm_args.max_update_ratio``; None accepts all. ``past``: accepted norms,
    bounded by :meth:`end`, updated in place. ``silos``: their number.
    """

    ratio: float | None
    past: Norms
    silos: int
    _round: int = -1
    _now: dict[int, dict[str, float]] = field(default_factory=dict)
    _excluded: Collection[int] = ()

    def begin(self, round: int, excluded: Collection[int] = ()) -> None:
        """Begin a round: drop the norms of this and later rounds. Those of excluded clients are not compared."""
        self._round, self._now, self._excluded = round, {}, excluded
        for client, rounds in self.past.items():
            before = sorted(at for at in rounds if at < round)
            self.past[client] = {at: rounds[at] for at in before[-ROUNDS:]}

    def add(self, client: int, norms: dict[str, float]) -> bool:
        """Add an upload; True if its silo's past is enough to accept it."""
        self._now[client] = norms
        at_once = all(norm <= self._most(self._before(client, name), median) for name, norm in norms.items() if norm)
        if at_once:
            self._accept(client)
        return at_once

    def objection(self, client: int) -> str:
        """Reason to refuse an upload, if any, after all have been added."""
        for name, norm in self._now[client].items():
            before, others = self._before(client, name), self._others(client, name)
            assumed = not before and self._unknown(name, others)
            limits = [max([ASSUMED, *others])] if assumed else others
            if norm and norm > max(self._most(before, median), self._most(limits, median_high)):
                medians = [f"{median_high(others):.3g} for the others"] if others and not assumed else []
                medians += [f"{median(before):.3g} for its own past"] if before else []
                medians += [f"assumed as {limits[0]:.4g}, because too few silos have sent {name}"] if assumed else []
                return f"the norm of its {name} is {norm:.3g}; the median is {' and '.join(medians)}"
        self._accept(client)
        return ""

    def end(self) -> dict[int, str]:
        """End a round: bound its accepted norms; return a text for each client with a norm far above the others'."""
        if self.ratio is None:
            return {}
        large, bounded = {}, {}
        for client in [client for client, rounds in self.past.items() if self._round in rounds]:
            own = bounded[client] = dict(self.past[client][self._round])
            for name, norm in self.past[client][self._round].items():
                others = self._others(client, name)
                if self._unknown(name, others):
                    own[name] = min(norm, ASSUMED)
                    continue
                middle = median_high(others)
                if norm > LARGE * middle and len(self._now) > 2:
                    large[client] = f"the norm of its {name} is {norm:.3g}; the median of the others is {middle:.3g}"
                # else a silo could grow in each round by the ratio of its own past, until the others' training fails
                own[name] = min(norm, self.ratio * middle)
        for client, own in bounded.items():
            self.past[client][self._round] = own
        return large

    def _accept(self, client: int) -> None:
        self.past.setdefault(client, {})[self._round] = self._now[client]

    def _unknown(self, name: str, others: list[float]) -> bool:
        """Whether the usual norm is unknown: a minority may be most of ``others``, or most of these changed nothing."""
        too_few = len(others) < max(2, 2 * ((len(self._now) - 1) // 2))
        return too_few or (name in CHANGES and median_high(others) == 0)

    def _most(self, norms: list[float], middle: Callable[[list[float]], float]) -> float:
        if self.ratio is None:
            return math.inf
        return self.ratio * middle(norms) if norms else 0.0

    def _before(self, client: int, name: str) -> list[float]:
        rounds = self.past.get(client, {})
        return _comparable((rounds[at] for at in rounds if at < self._round), name)

    def _others(self, client: int, name: str) -> list[float]:
        now = _comparable((norms for k, norms in self._now.items() if k != client), name, zeros=True)
        if len(now) >= 2:
            return now
        absent = self.past.keys() - {client, *self._now, *self._excluded}
        known = now + [before[-1] for k in sorted(absent) if (before := self._before(k, name))]
        minority = (self.silos - len(self._excluded) - 1) // 2
        return known if len(known) >= 2 * minority else now


def _comparable(uploads: Iterable[Mapping[str, float]], name: str, *, zeros: bool = False) -> list[float]:
    """Norms above 0, and 0 for buffers and frozen parameters without a change; ``zeros``: for ``CHANGES``, too."""
    counts_zeros = name.startswith(UNTRAINED) or (zeros and name in CHANGES)
    return [norms.get(name, 0.0) for norms in uploads if norms.get(name) or counts_zeros]
