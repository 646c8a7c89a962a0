"""Weighted means and checks of uploads."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from fl_labelskew_registry import Aggregation, Contribution, Federation, Method, Optimizer, RunError, Total, shareable
from torch import Tensor

from fl_labelskew_plugins.checked import SENT, HookError
from fl_labelskew_plugins.machine.text import clean, few
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, pieces

ALL = "return all tensors that it was given, with their shapes"
PROXIES = ("classifier.weight", "classifier.bias")
MAX_BATCHES = 2**20  # per round
COUNTER, VARIANCES = "num_batches_tracked", "running_var"  # ends of names


def client_weights(samples: Sequence[int], aggregation: Aggregation, population: int) -> list[float]:
    """One weight per upload; ``samples``: of each client of the round; ``population``: samples of all clients."""
    if aggregation == "uniform":
        return [1 / len(samples)] * len(samples)
    # silos that join late may have more samples than the population
    total = max(population, sum(samples)) if aggregation == "population" else sum(samples)
    return [n / total for n in samples]


def share_of_old(weights: Sequence[float]) -> float:
    """Weight of the old model."""
    rest = 1 - added(weights)
    return rest if abs(rest) > 1e-9 else 0.0


def class_weights(counts: Tensor, smoothing: float) -> Tensor:
    """Weights ``(|S|, C)`` of the classifier's rows, ``p_kc ~ n_kc + lambda`` (FedRS, section 4.4).

    A column sums to 1, or to 0 without samples and smoothing.
    """
    smoothed = counts.double() + smoothing
    return smoothed / smoothed.sum(0).clamp_min(torch.finfo(torch.float64).tiny)


def origin(weights: Weights, optimizer: Optimizer, parameters: Sequence[str]) -> Weights:
    """The upload of an unchanged model."""
    if not optimizer.sends_change:
        return weights
    return weights | {name: torch.zeros_like(weights[name]) for name in parameters}


def announced(
    method: Method, optimizer: Optimizer, federation: Federation, weights: Weights, parameters: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that clients may send in addition to weights."""
    shapes = {name: tuple(weights[name].shape) for name in parameters}
    of_optimizer = {f"{OPTIMIZER}/{k}": tuple(v) for k, v in optimizer.contribution_shapes(shapes).items()}
    return {**method.contribution_shapes(federation), **of_optimizer}


class WeightedMean:
    """Running weighted sum of uploads; ``old``: from :func:`origin`."""

    def __init__(self, old: Weights) -> None:
        self._old = old
        self.sums: Weights = {}

    @torch.no_grad()
    def add(self, upload: Weights, weight: float, proxy_weight: Tensor | None = None) -> None:
        """Add an upload; ``proxy_weight`` ``(C,)``: for the classifier's rows."""
        for key, value in upload.items():
            term = value if value.is_floating_point() else value.double()
            if proxy_weight is not None and key in PROXIES:
                term = term * rows(proxy_weight, term)
                self.sums[key] = self.sums[key] + term if key in self.sums else term
            elif key in self.sums:
                for into, part in matching(self.sums[key], term):
                    into.add_(part, alpha=weight)
            else:
                self.sums[key] = torch.empty_like(term)
                for into, part in matching(self.sums[key], term):
                    torch.mul(part, weight, out=into)

    @torch.no_grad()
    def scale(self, factor: float, proxy_factor: Tensor | None = None) -> None:
        """Rescale the sum; ``proxy_factor`` ``(C,)``: for the classifier's rows."""
        for key, value in self.sums.items():
            value.mul_(factor if proxy_factor is None or key not in PROXIES else rows(proxy_factor, value))

    @torch.no_grad()
    def result(self, rest: float = 0.0, proxy_rest: Tensor | None = None) -> Weights:
        """Mean in the old dtypes; ``rest``: share of the old model; ``proxy_rest`` ``(C,)``: of its classifier rows."""
        if rest:
            self.add(self._old, rest, proxy_rest)
        elif proxy_rest is not None and bool(proxy_rest.any()):
            self.add({k: self._old[k] for k in PROXIES if k in self._old}, 0.0, proxy_rest)
        return {key: self._in_dtype(key, value) for key, value in self.sums.items()}

    def _in_dtype(self, key: str, mean: Tensor) -> Tensor:
        old = self._old[key]
        if old.is_floating_point():
            return mean
        # other integers keep their old values: they may be indices, and a bad one could make training fail
        return mean.round().to(old.dtype).clamp(old, old + MAX_BATCHES) if key.endswith(COUNTER) else old


class Addition:
    """Running sum of tensors other than weights; ``individual``: also keep each client's."""

    def __init__(self, *, individual: bool) -> None:
        self._individual = individual
        self._sums: dict[str, Tensor] = {}
        self._contributions: list[Contribution] = []

    def add(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Add one client's tensors."""
        for name, value in tensors.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        if self._individual and tensors:
            self._contributions.append(Contribution(client, tensors))

    def total(self, clients: int, round: int = 0) -> Total:
        """The sum over ``clients`` clients. Raises RunError if it is not finite."""
        for name, value in self._sums.items():
            if not _finite(value):
                what = f"the sum of {clean(name, 80)} over {clients} clients is not finite, training diverged"
                raise RunError(f"round {round + 1}: {what}; use a smaller train_args.learning_rate")
        return Total(self._sums, clients, round, self._contributions)


def matching(into: Tensor, term: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Parts of two tensors: tensors on disk then need little memory."""
    return zip(pieces(into), pieces(term), strict=True) if into.stride() == term.stride() else [(into, term)]


def rows(per_class: Tensor, like: Tensor) -> Tensor:
    """``(C,)`` reshaped to multiply the classifier's rows."""
    return per_class.to(like).reshape(-1, *[1] * (like.dim() - 1))


def weighted_mean(uploads: Iterable[tuple[float, Weights]], old: Weights) -> Weights:
    """``sum_k w_k u_k + (1 - sum_k w_k) old``."""
    mean, weights = WeightedMean(old), []
    for weight, upload in uploads:
        mean.add(upload, weight)
        weights.append(weight)
    return mean.result(share_of_old(weights))


def check_upload(
    upload: Mapping[str, Tensor], old: Mapping[str, Tensor], *, where: str, keys: Sequence[str] = ()
) -> None:
    """Raise RunError for other names, shapes or dtypes, or values that are not finite; ``keys``: possible causes."""
    if upload.keys() != old.keys():
        differing = few(sorted(upload.keys() ^ old.keys()), 3)
        raise shareable(RunError(f"{where} and the model differ in the tensors {differing}"))
    for key, value in upload.items():
        if value.shape != old[key].shape or value.dtype != old[key].dtype:
            expected = f"{tuple(old[key].shape)} {old[key].dtype}"
            raise shareable(RunError(f"{where}: {key} is {tuple(value.shape)} {value.dtype}, expected {expected}"))
        if not _finite(value):
            others = f", or another value of one of {', '.join(keys)}" if keys else ""
            use = f"use a smaller train_args.learning_rate, or a train_args.gradient_clip_norm{others}"
            raise shareable(RunError(f"{where}: {key} is not finite, training diverged; {use}"))


def check_form(state: Mapping[str, Tensor], old: Mapping[str, Tensor], what: str, use: str = ALL) -> None:
    """Raise HookError if a plugin's state dict has other names or shapes; ``what``: begins the message."""
    for name, value in state.items():
        if name in old and value.shape != old[name].shape:
            shape, expected = tuple(value.shape), tuple(old[name].shape)
            raise HookError(f"{what} with {clean(name, 80)} of the shape {shape}, expected {expected}; {use}")
    missing, unexpected = ([name for name in a if name not in b] for a, b in ((old, state), (state, old)))
    if missing or unexpected:
        parts = [f"without {few(missing, 3)}"] if missing else []
        parts += [f"with {few(unexpected, 3)}, which the server's model does not have"] if unexpected else []
        raise HookError(f"{what} {' and '.join(parts)}; {use}")


def check_result(
    upload: Weights,
    extra: Mapping[str, Tensor],
    old: Weights,
    shapes: Mapping[str, tuple[int, ...]],
    method: Method,
    optimizer: Optimizer,
    *,
    where: str,
) -> None:
    """Raise RunError if a client's result is invalid; ``shapes``: from :func:`announced`."""
    check_upload(upload, old, where=where, keys=numbers(optimizer))
    for name, value in upload.items():
        if name.endswith(VARIANCES) and bool((value < 0).any()):
            raise RunError(f"{where}: {name} has negative variances")  # other clients' features would be NaN
    needed = [name for name in shapes if name.startswith(f"{OPTIMIZER}/")]
    # a tensor named after a parameter has its dtype
    named = {name: old.get(name.removeprefix(f"{OPTIMIZER}/")) for name in needed}
    dtypes = {n: (torch.float32, torch.float64) if like is None else (like.dtype,) for n, like in named.items()}
    check_extra(extra, shapes, where=where, dtypes=dtypes)
    for name, value in extra.items():
        if method.sends.get(name) == "counts" and bool((value < 0).any()):
            raise RunError(f"{where}: {name} has negative values")
    for name in needed if optimizer.sends_change else ():
        if name in extra and not extra[name].dim() and not extra[name] > 0:
            raise RunError(f"{where}: {name} is not above 0")  # it would reverse the changes of all clients
    if missing := sorted(set(needed) - extra.keys()):
        raise RunError(f"{where} lacks {missing[0]}, which the server's optimiser needs from all clients")


def check_terms(terms: Mapping[str, float], upload: Mapping[str, Tensor], method: Method, *, where: str) -> None:
    """Raise RunError if a loss term is not finite although the weights are."""
    for name, value in terms.items():
        if not math.isfinite(value) and all(map(_finite, upload.values())):
            keys = ", or another ".join(["train_args.learning_rate", *numbers(method)])
            message = f"{where}: loss term {name} is {value}, training diverged; use a smaller {keys}"
            raise shareable(RunError(message))


def check_extra(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    where: str,
    dtypes: Mapping[str, Sequence[torch.dtype]] | None = None,
) -> None:
    """Raise RunError for other tensors than announced, or invalid values.

    ``dtypes``: allowed for each tensor, because one client's dtype changes that of the sum; default: :data:`.SENT`.
    """
    if unknown := sorted(tensors.keys() - shapes.keys()):
        raise RunError(f"{where} has tensors that its method does not announce: {few(unknown, 3)}")
    for key, value in tensors.items():
        if tuple(value.shape) != tuple(shapes[key]):
            raise RunError(f"{where}: {key} is of shape {tuple(value.shape)}, expected {tuple(shapes[key])}")
        if value.dtype not in (expected := (dtypes or {}).get(key, SENT)):
            raise RunError(f"{where}: {key} is {value.dtype}, expected {' or '.join(map(str, expected))}")
        if not _finite(value):
            raise shareable(RunError(f"{where}: {key} is not finite"))
        if not value.is_floating_point() and bool((value < 0).any()):
            raise RunError(f"{where}: {key} has negative integers")


def check_made(made: Mapping[str, Tensor], plugin: Method | Optimizer) -> None:
    """Raise RunError if the result of a plugin's step is not finite."""
    for key, value in made.items():
        if not _finite(value):
            keys = ", ".join([*numbers(plugin), "train_args.learning_rate"])
            what = f"{key} is not finite after {type(plugin).__name__}'s step on the server, training diverged"
            raise RunError(f"{what}; use another value of one of {keys}")


def numbers(plugin: Method | Optimizer) -> list[str]:
    """Keys of a plugin's float parameters."""
    section = "method_args" if isinstance(plugin, Method) else "train_args"
    return [f"{section}.{name}" for name, value in plugin.params if isinstance(value, float)]


def _finite(value: Tensor) -> bool:
    # the sum is checked first, which is faster
    return not value.is_floating_point() or all(
        bool(torch.isfinite(part.sum()) or torch.isfinite(part).all()) for part in pieces(value)
    )
