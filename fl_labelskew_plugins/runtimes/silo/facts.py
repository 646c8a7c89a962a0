"""Facts about silos' data, and settings that server and silos share."""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Data, Federation, LabelSkewError, Method, RunError, mistake, shareable
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins.data import stats
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.methods.combined import Combined
from fl_labelskew_plugins.partition.clients import Clients
from fl_labelskew_plugins.recipe import mistakes
from fl_labelskew_plugins.recipe.conflicts import classes_of
from fl_labelskew_plugins.recipe.model import Recipe, different
from fl_labelskew_plugins.recipe.network_file import files, portable
from fl_labelskew_plugins.recipe.sections import MOST_CLASSES, MOST_NUMBERS
from fl_labelskew_plugins.runs.session import Session, check_form, data_folder, divided, loaded, numbered
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.tensors import OPTIMIZER, State

MAX_SAMPLES = 10**12
MAX_CHANNELS = 2**15  # with sums of samples
MAX_SHARED = 20  # shared tensors of all methods of a run together, with noise


@dataclass(frozen=True)
class Facts:
    """A silo's first message."""

    samples: int  # for training; 0 if they are only summed
    input_shape: tuple[int, ...]
    num_classes: int
    counts: tuple[int, ...] | None = None  # samples per class, if the recipe needs them
    classes: str | None = None  # from `digest`

    def meta(self) -> dict[str, Any]:
        """As JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items() if v not in (None, 0)}


def digest(names: Sequence[str]) -> str | None:
    """Digest of class names; None for numbers."""
    if numbered(names):
        return None
    return hashlib.blake2b(json.dumps(list(names)).encode(), digest_size=16).hexdigest()


def differing(local: Sequence[str], remote: Any, where: str) -> str:
    """The first class name that differs, for messages."""
    if not isinstance(remote, list) or not all(isinstance(name, str) for name in remote):
        return ""
    if len(remote) != len(local):
        return f"{counted(len(local), 'class', 'classes')} here and {len(remote)} {where}"
    classes = [c for c, (a, b) in enumerate(zip(local, remote, strict=True)) if a != b]
    if not classes or numbered(local) or numbered(remote):
        return ""
    more = f" (and {len(classes) - 1} more differ)" if len(classes) > 1 else ""
    names = f"{mistakes.quoted(local[classes[0]])} here and {mistakes.quoted(remote[classes[0]])} {where}"
    return f"class {classes[0]} is {names}{more}; use the same data_args.class_names, in the same order, everywhere"


def facts(meta: Mapping[str, Any], *, summed: bool = False) -> Facts:
    """Parse a silo's facts; ``summed``: without its samples. Raises RunError."""
    values: list[Any] = [meta.get(field.name) for field in fields(Facts)]
    samples, shape, classes, counts, names = values
    if summed and (samples, counts) != (None, None):
        what = "it reports its number of samples, but comm_args.secure_aggregation allows only their sum"
        raise RunError(f"{what}; use the same recipe")
    samples = 0 if summed else samples
    if not summed and not _whole(samples, 1, MAX_SAMPLES):
        raise RunError("its number of samples is not a whole number above 0")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 5 or not all(_whole(n, 1, 10**6) for n in shape):
        raise RunError("its input shape is not a list of whole numbers above 0")
    if math.prod(shape) > MOST_NUMBERS:
        raise RunError(f"its input shape has more than {MOST_NUMBERS} numbers")
    if not _whole(classes, 1, MOST_CLASSES):
        raise RunError("its number of classes is not a whole number above 0")
    if counts is not None:
        fits = isinstance(counts, list) and len(counts) == classes and all(_whole(n, 0, MAX_SAMPLES) for n in counts)
        if not fits or sum(counts) != samples:
            raise RunError("its class counts are not whole numbers that sum to its samples")
    if names is not None and not (isinstance(names, str) and re.fullmatch("[0-9a-f]{32}", names)):
        raise RunError("its digest of class names is not 32 hexadecimal digits")
    return Facts(samples, tuple(shape), classes, None if counts is None else tuple(counts), names)


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


@dataclass(frozen=True)
class SiloData:
    """A silo's samples; ``sums``: for the common mean and std."""

    data: Data
    facts: Facts
    sums: stats.MomentSums | None = None

    def sent(self) -> dict[str, Tensor]:
        """The sums as tensors."""
        if self.sums is None:
            return {}
        return {"sum": torch.from_numpy(self.sums.first), "squares": torch.from_numpy(self.sums.second)}

    def indices(self, client: int) -> tuple[dict[int, NDArray[np.int64]], dict[int, NDArray[np.int64]]]:
        """Indices of all training and test samples, by client."""
        return {client: np.arange(len(self.data.train.y))}, {client: np.arange(len(self.data.test.y))}

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training samples per class, ``(C,)``."""
        return np.bincount(self.data.train.y, minlength=len(self.data.class_names))


Divided = tuple[Data, Clients]


def load(recipe: Recipe, client: int, parts: Divided | None = None) -> SiloData:
    """Load a silo's samples; ``parts``: all silos', if known. Raises LabelSkewError without training samples."""
    if recipe.own_data:
        if data_folder(recipe) is None:
            try:
                recipe.dataset.check(None, download=recipe.data.download)
            except LabelSkewError as error:
                file = clean(recipe.client_specific.data_silo_config[client], 4096)
                raise LabelSkewError(
                    f"{file}: {error}; to set the path: labelskew silo data {shlex.quote(file)} PATH"
                ) from None
        data = loaded(recipe)
    else:
        data, clients = divided(recipe) if parts is None else parts
        split = (data.train, clients.train[client]), (data.test, clients.test[client])
        train, test = (Arrays(part.x[index], part.y[index]) for part, index in split)
        data = Data(train, test, data.class_names, data.mean, data.std)  # without the fingerprint of all samples
    if not len(data.train.y):
        raise LabelSkewError(f"silo {client + 1} has no training sample; give it at least one")
    names, shape = data.class_names, tuple(data.train.x.shape[1:])
    summary = Facts(len(data.train.y), shape, len(names), classes=digest(names))
    silo = SiloData(data, summary, stats.sums(data.train.x) if recipe.pools_moments else None)
    if recipe.pools_moments and shape[0] > MAX_CHANNELS:
        what = f"the samples have {shape[0]} channels, but a silo can send sums of at most {MAX_CHANNELS}"
        raise mistake("data_args.mean", what, "numbers for mean and std in the server's recipe")
    if recipe.train.proxy_aggregation == "class":
        silo = replace(silo, facts=replace(summary, counts=tuple(silo.counts.tolist())))
    return silo


def test_data(recipe: Recipe) -> Data | None:
    """The server's test samples, if any. Raises LabelSkewError."""
    if not recipe.validation.server_test_data:
        return None
    folder, download = data_folder(recipe), recipe.data.download
    recipe.dataset.check_test(folder, download=download)
    if not recipe.own_data and "data" in (recipe.data.mean, recipe.data.std):  # computed from the local training part
        data = loaded(recipe)
        return replace(data, train=Arrays(data.train.x[:0].copy(), data.train.y[:0].copy()))
    data = recipe.dataset.load_test(folder, download=download, seed=recipe.common.random_seed)
    check_form(recipe, data)
    return data


def normalised(data: Data, tensors: Mapping[str, Tensor]) -> Data:
    """Data with the server's mean and std. Raises LabelSkewError if these do not fit."""
    channels = data.train.x.shape[1]
    if tensors.keys() - {"mean", "std"}:  # a digest of requests could confuse them with those of a model
        raise shareable(LabelSkewError("the server sent other tensors with the mean and std of all samples"))

    def numbers(key: str, least: float) -> tuple[float, ...]:
        value = tensors.get(key, torch.zeros(0))
        form = value.dtype == torch.float64 and tuple(value.shape) in ((1,), (channels,))
        if not form or not value.isfinite().all() or value.min() <= least:
            what = f"cannot normalise samples of {counted(channels, 'channel')}"
            raise mistake(f"the server's {key} of all samples", what, "data_args.mean and std in the server's recipe")
        return tuple(value.tolist())

    return replace(data, mean=numbers("mean", -math.inf), std=numbers("std", 0.0))


def unsuitable(common: stats.Moments, sums: stats.MomentSums) -> list[tuple[int, float, float]]:
    """Channels for which ``common`` is useless, each with its mean and std after normalisation.

    That is a mean above 3 or below -3, or a std not in 0.1..10. Of channels that are constant here, only the mean.
    """
    (mean, std), (own_mean, own_std) = map(np.array, common), sums.moments()
    varies = own_std > 1e-12 + 1e-9 * np.abs(own_mean)  # more than rounding errors
    means, stds = (own_mean - mean) / std, own_std / std
    far = (np.abs(means) > 3) | (varies & ((stds > 10) | (stds < 0.1)))
    return [(int(c), float(means[c]), float(stds[c])) for c in np.flatnonzero(far)]


def sums(tensors: Mapping[str, Tensor], facts: Facts, *, pixels: bool = False) -> stats.MomentSums:
    """Parse a silo's sums; ``pixels``: floats are from 0 to 1. Raises RunError."""
    first, second = (tensors.get(name) for name in ("sum", "squares"))
    if first is None or second is None or len(tensors) != 2:
        use = "use the same recipe, without --survey"
        raise RunError(f"it does not send the sums for mean and std (data_args.mean); {use}")
    count, channels = facts.samples * math.prod(facts.input_shape[1:]), facts.input_shape[:1]
    kinds = {first.dtype, second.dtype}
    if not tuple(first.shape) == tuple(second.shape) == channels or kinds not in ({torch.int64}, {torch.float64}):
        raise RunError(f"the sums of its samples are not two tensors of {channels[0]} numbers")
    if torch.int64 in kinds:
        pairs = zip(first.tolist(), second.tolist(), strict=True)  # Python's integers do not overflow
        fits = all(0 <= a <= 255 * count and a * a <= count * b and b <= 255 * a for a, b in pairs)
    else:
        most = 1.0 if pixels else torch.finfo(torch.float32).max  # NaN fails the comparisons, too
        fits = bool((first.abs() <= count * most).all() and ((second >= 0) & (second <= count * most**2)).all())
    if not fits:
        raise RunError(f"the sums of its samples are impossible for {count} values")
    return stats.MomentSums(count, first.numpy(), second.numpy())


def agreed(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Settings that server and silos must share, as JSON; only the server stops a run early."""
    resolved = portable(recipe)
    sections = {
        "common_args": {"random_seed": recipe.common.random_seed},
        "data_args": recipe.normalisation,
        "model_args": resolved["model_args"],
        "train_args": {key: value for key, value in resolved["train_args"].items() if key != "stop"},
        "method_args": _common(recipe.method, resolved["method_args"]),
    }
    if recipe.privacy.noise_multiplier is not None:
        sections["privacy_args"] = {key: resolved["privacy_args"][key] for key in ("noise_multiplier", "clip")}
    if recipe.only_sums:
        comm = resolved["comm_args"].items()
        sections["comm_args"] = {k: v for k, v in comm if k.startswith("secure_") or k == "min_clients"}
    return {name: {key: _exact(value) for key, value in keys.items()} for name, keys in sections.items()}


def _exact(value: Any) -> Any:
    # a digest if the wire would change the value
    text = json.dumps(value, sort_keys=True)
    return value if wire.cleaned(value) == value else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _common(method: Method, keys: Mapping[str, Any]) -> dict[str, Any]:
    parts = method.parts if isinstance(method, Combined) else {}
    return {k: _common(parts[k], v) if k in parts else v for k, v in keys.items() if k not in method.silo_choices}


def check_agreement(server: Any, recipe: Recipe) -> None:
    """Raise LabelSkewError for a setting that differs from the server's."""
    if not isinstance(server, dict) or not all(isinstance(section, dict) for section in server.values()):
        what = "the server's settings are not sections of keys; use the same version on both machines"
        raise shareable(LabelSkewError(what))
    local = agreed(recipe)
    # true, 1.0 and 1 are equal in Python, but not as text
    texts = ({s: {k: json.dumps(v) for k, v in p.items()} for s, p in a.items()} for a in (local, server))
    if differing := different(*texts):
        section, _, key = differing[0].partition(".")
        here, there = (mistakes.quoted(settings.get(section, {}).get(key)) for settings in (local, server))
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        name = key.removesuffix("_sha256")
        if name != key and (entry := files(recipe).get(name)):
            place, file, use = f"{section}.{name}", f": {entry['file']}", "the same file"
            here, there = (f"SHA-256 {digest[1:17]}..." for digest in (here, there))
        else:
            place, file, use = clean(differing[0]), "", "the server's recipe"
        error = LabelSkewError(f"{place}{file}: {here} here and {there} at the server{more}; use {use}")
        raise shareable(error, f"{place}: {there} at the server, another value here{more}; use {use}")


def number(meta: Mapping[str, Any], key: str, least: int, most: int, where: str) -> int:
    """An integer from the server. Raises LabelSkewError if it is out of range."""
    value = meta.get(key)
    if type(value) is not int or not least <= value <= most:
        bounds = f"{least}" if least == most else f"a whole number from {least} to {most}"
        what = f"{where}: {key} is {mistakes.quoted(value)} at the server"
        raise shareable(LabelSkewError(f"{what}; expected here: {bounds}"), f"{what}, which this silo does not accept")
    return value


def numbers(meta: Mapping[str, Any], key: str, least: int, most: int, where: str) -> set[int]:
    """A list of integers from the server, see :func:`number`."""
    value = meta.get(key)
    values = value if isinstance(value, list) else [value]
    return {number({key: one}, key, least, most, where) for one in values}


def check_shared(shared: State, session: Session, *, where: str) -> None:
    """Raise RunError unless each shared tensor has one number, one row per class, or the shape of a parameter.

    With fewer rows, training fails only at silos that have a certain class. With long rows, it needs much memory only
    at the others, so a silo that runs out of memory would show its classes. Many tensors make training longer.
    """
    if len(shared) > (most := len(session.start) + MAX_SHARED):
        what = f"{where}: the server sends {len(shared)} shared tensors"
        raise shareable(RunError(f"{what}; with noise, at most {most} are allowed"))
    classes = session.federation.num_classes
    most = max(classes, session.federation.num_features)
    parameters = {value.shape for value in session.start.values()}
    for name, value in shared.items():
        rows = value.ndim in (1, 2) and len(value) == classes and value.shape[-1] <= most
        if not (value.ndim == 0 or rows or (name.startswith(f"{OPTIMIZER}/") and value.shape in parameters)):
            what = f"{where}: the server's shared tensor {clean(name)} has the shape {list(value.shape)}"
            raise shareable(RunError(f"{what}; with noise, {classes} rows of at most {most} numbers are allowed"))


def federation(content: Any, recipe: Recipe, facts: Facts) -> Federation:
    """Parse the federation. Raises LabelSkewError if it contradicts this silo's recipe or data."""
    where, train = "the server's federation", recipe.train
    if not isinstance(content, dict):
        raise LabelSkewError(f"{where} is {mistakes.quoted(content)}; expected here: a mapping of names to numbers")
    names = [field.name for field in fields(Federation)]
    if unknown := [name for name in content if name not in names]:
        raise LabelSkewError(f"{where}: {clean(unknown[0])} is unknown; expected here: {', '.join(names)}")
    exact = {
        "num_clients": train.client_num_in_total,
        "clients_per_round": train.clients_per_round,
        "rounds": train.comm_round,
        "epochs": train.epochs,
        "num_classes": facts.num_classes,
        "seed": recipe.common.random_seed,
    }
    bounds = {name: (value, value) for name, value in exact.items()} | {
        "num_features": (1, MOST_NUMBERS),
        "num_samples": (facts.samples, MAX_SAMPLES * train.client_num_in_total),
        "min_samples": (1, facts.samples),
    }
    if recipe.only_sums:  # the total is unknown at first, and the minimum always
        # with noise, a silo that claims a negative number could otherwise make others refuse the run
        least = facts.samples if recipe.privacy.noise_multiplier is None else 1
        bounds["num_samples"] = (0 if content.get("num_samples") == 0 else least, bounds["num_samples"][1])
        bounds["min_samples"] = (0, 0)
    return Federation(**{name: number(content, name, *bounds[name], where) for name in names})


class OtherClassesError(RunError):
    """A silo has other classes than the server."""


def form(recipe: Recipe, test: Data | None) -> tuple[tuple[int, ...], int]:
    """Shape of a sample, and ``C``."""
    if test is not None:
        return tuple(test.test.x.shape[1:]), len(test.class_names)
    shape, classes = recipe.data.input_shape, classes_of(recipe.data, recipe.dataset.params)
    assert shape is not None  # checked with the recipe
    assert classes is not None
    return tuple(shape), classes


def server_classes(recipe: Recipe, test: Data | None) -> list[str] | None:
    """Class names, if known."""
    names = getattr(recipe.dataset.params, "class_names", None) if test is None else test.class_names
    return None if names is None or numbered(names) else list(names)


class Census:
    """All silos' facts; ``sizes``: training samples per silo, updated in place; 0: unknown, 1: only summed."""

    def __init__(
        self,
        recipe: Recipe,
        test: Data | None,
        sizes: list[int],
        warn: Callable[[int, str], None],
        *,
        summed: bool = False,
    ) -> None:
        self._recipe, self.sizes, self._warn = recipe, sizes, warn
        (self._shape, self.num_classes), self.class_names = form(recipe, test), server_classes(recipe, test)
        self._classes = None if self.class_names is None else digest(self.class_names)
        self.pixels = test is not None and getattr(test.test.x, "dtype", None) == np.uint8
        self._facts: dict[int, Facts] = {}
        self._sums: dict[int, stats.MomentSums] = {}
        self.samples: int | None = 0 if summed else None
        """From secure aggregation; 0 before it, else None."""

    def check(self, client: int, facts: Facts) -> None:
        """Raise RunError for data that do not fit."""
        shape, classes = self._shape, self.num_classes
        if (facts.input_shape, facts.num_classes) != (shape, classes):
            what = f"its data have {facts.num_classes} classes and samples of shape {facts.input_shape}"
            raise RunError(f"{what}; expected: {classes} classes and samples of shape {shape}")
        if self._classes is not None and facts.classes not in (None, self._classes):
            raise OtherClassesError("its class names or their order differ from the server's")
        others = [k for k, known in sorted(self._facts.items()) if None not in (known.classes, facts.classes)]
        mismatched = [k for k in others if self._facts[k].classes != facts.classes]
        if self._classes is None and mismatched:
            what = f"has other class names than silo {mismatched[0] + 1}, and the server does not know which are right"
            self._warn(client, f"{what}; compare their data_args")
        if facts.samples > (most := self._recipe.comm.max_samples):
            what = f"it reports {facts.samples} training samples; at most {most} are allowed"
            raise RunError(f"{what} (comm_args.max_samples of the server)")
        known = self._facts.get(client)
        weighted = self._recipe.train.proxy_aggregation == "class"  # else counts are not used
        if weighted and known is not None and known.counts not in (None, facts.counts):
            raise RunError("its class counts have changed; begin a new run")
        if self.samples is None and self.sizes[client] and self.sizes[client] != facts.samples:
            raise RunError(f"it had {self.sizes[client]} training samples when the run began, now {facts.samples}")

    def add(self, client: int, facts: Facts, sums: stats.MomentSums | None = None) -> None:
        """Add a silo that passed :meth:`check`."""
        self._facts[client], self.sizes[client] = facts, facts.samples or 1
        if sums is not None:
            self._sums[client] = sums

    def moments(self, clients: Collection[int]) -> stats.Moments | None:
        """Mean and std of all training samples; None without sums."""
        parts = [self._sums[client] for client in sorted(clients) if client in self._sums]
        return stats.pooled(parts) if parts else None

    def unusual_moments(self, clients: Collection[int]) -> Iterator[tuple[int, bool]]:
        """Silos that make the common mean and std :func:`unsuitable` for all other silos together.

        With each silo: whether it has most samples, so that one of the others may be the cause.
        """
        found = ((client, self._sums[client]) for client in sorted({*clients} & self._sums.keys()))
        known = {client: stats.MomentSums(sums.count, *sums.floats()) for client, sums in found}
        if len(known) < 2:
            return
        common = stats.pooled([*known.values()])
        for client, own in known.items():
            if unsuitable(common, stats.merged([sums for other, sums in known.items() if other != client])):
                yield client, 2 * own.count > sum(sums.count for sums in known.values())

    @property
    def exact(self) -> bool:
        """Whether the silos have sums of uint8 samples."""
        return bool(self._sums) and not self.inexact

    @property
    def inexact(self) -> list[int]:
        """Silos with sums of floats."""
        return sorted(client for client, sums in self._sums.items() if not sums.exact)

    def class_counts(self, session: Session) -> torch.Tensor | None:
        """Class counts ``(K, C)``, if sent."""
        if self._recipe.train.proxy_aggregation != "class" or self.samples is not None:
            return None
        counts = {client: facts.counts for client, facts in self._facts.items()}
        zeros = [0] * session.federation.num_classes
        return torch.tensor([counts.get(k) or zeros for k in range(len(self.sizes))]).to(session.trainer.device)

    def federation(self, federation: Federation, without: Collection[int] = ()) -> Federation:
        """Count the samples of silos outside ``without``, or of all if none is left."""
        if self.samples is not None:
            return replace(federation, num_samples=self.samples, min_samples=0)
        known = [n for k, n in enumerate(self.sizes) if n and k not in without] or [n for n in self.sizes if n]
        return replace(federation, num_samples=sum(known), min_samples=min(known))
