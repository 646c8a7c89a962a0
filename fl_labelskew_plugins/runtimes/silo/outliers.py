"""Refuse uploads of extreme size: a single finite upload of 3.4e38 would determine the mean of a round."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median_high

import torch
from torch import Tensor

from fl_labelskew_plugins.engine.aggregate import VARIANCES, matching
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, pieces

UPDATE, MOVEMENT = "update", "update times the optimiser's numbers"
STATISTICS = "running means and variances"  # of batch normalisation
CHANGES = UPDATE, MOVEMENT, OPTIMIZER  # all silos send these, but they may be 0
UNTRAINED = "tensor "  # before the name of a buffer or frozen parameter
ASSUMED = 1000.0  # instead of an unknown median
LARGE = 30.0  # times the median: the server warns of the silo
STEPS = 100.0  # assumed local steps, for `MOVEMENT`


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


def model_norm(weights: Weights, parameters: Collection[str]) -> float:
    """L2 norm of all trained parameters, at least 1."""
    return max(1.0, math.hypot(*(_distance(part, None) for name in parameters for part in pieces(weights[name]))))


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
    """Compares the norms of a round's uploads with their median, independently of their order.

    Norms are bounded as by Sun et al. 2019 (Can You Really Backdoor Federated Learning?), and the bound follows the
    median of the round as in FLAME (Nguyen et al. 2022). Larger uploads are refused, not scaled. Norms up to
    that of the model are accepted: most silos may have nothing left to learn.

    Args:
        ratio: ``comm_args.max_update_ratio``.
        medians: of the last earlier round with such norms, by name; updated in place.
    """

    ratio: float
    medians: dict[str, float]
    _now: dict[int, dict[str, float]] = field(default_factory=dict)
    _model_norm: float = 0.0

    def begin(self, model_norm: float) -> None:
        """Begin a round without uploads; ``model_norm``: see :func:`model_norm`."""
        self._now, self._model_norm = {}, model_norm

    def add(self, client: int, norms: dict[str, float]) -> bool:
        """Add an upload; True if the earlier medians are enough to accept it."""
        self._now[client] = norms
        return all(norm <= self._limit(name, self.medians.get(name, 0.0)) for name, norm in norms.items())

    def objection(self, client: int) -> str:
        """Reason to refuse an upload, if any, after all have been added."""
        for name, norm in self._now[client].items():
            medians = [middle for middle in (self._median(name), self.medians.get(name)) if middle is not None]
            if norm > self._limit(name, max(medians, default=ASSUMED)):
                usual = f"the median {max(medians):.3g}" if medians else f"{ASSUMED:g}, the assumed median"
                return f"the norm of its {name} is {norm:.3g}, more than {self.ratio:g} times {usual}"
        return ""

    def end(self) -> dict[int, str]:
        """End a round; return a text for each client with an accepted norm far above the median of the round."""
        names = sorted({name for norms in self._now.values() for name in norms})
        found = {name: self._median(name) for name in names}
        medians = {name: middle for name, middle in found.items() if middle is not None}
        large = {
            client: f"the norm of its {name} is {norm:.3g}; the median of the round is {medians[name]:.3g}"
            for client, norms in self._now.items()
            for name, norm in norms.items()
            if name in medians and norm > LARGE * medians[name] and not self.objection(client)
        }
        self.medians.update(medians)
        return large

    def _limit(self, name: str, median: float) -> float:
        least = 0.0 if _is_buffer(name) else self._model_norm * (STEPS if name == MOVEMENT else 1.0)
        return max(self.ratio * median, least)

    def _median(self, name: str) -> float | None:
        """Upper median of the round; None if fewer than three silos have sent such values."""
        values = [norms.get(name, 0.0) for norms in self._now.values()]
        if name not in CHANGES and not _is_buffer(name):  # a tensor of the method, which a silo may omit
            values = [norm for norm in values if norm]
        middle = median_high(values) if len(values) >= 3 else None
        return middle or (middle if _is_buffer(name) else None)  # a buffer that most do not change must not change


def _is_buffer(name: str) -> bool:
    """Whether these are norms of buffers or frozen parameters."""
    return name == STATISTICS or name.startswith(UNTRAINED)
