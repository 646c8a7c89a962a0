"""What silo and server know of each other: facts that a silo tells, what a server knows of all silos' data together,
settings that both have to share.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fl_labelskew_plugins.recipe import mistakes
from fl_labelskew_plugins.recipe.conflicts import classes_of
from fl_labelskew_plugins.recipe.model import Recipe, different
from fl_labelskew_plugins.recipe.network_file import files, portable
from fl_labelskew_plugins.recipe.sections import MOST_CLASSES, MOST_NUMBERS
from fl_labelskew_plugins.runs.session import Session, check_form, data_folder, divided, loaded, numbered
from fl_labelskew_plugins.runtimes import wire

MOST_SAMPLES = 10**12
MOST_CHANNELS = 2**15
"""Of samples whose sums are sent, which so fit into a HELLO."""


@dataclass(frozen=True)
class Facts:
    """What a silo tells before anything else, and all that it tells of its data beside the method's own tensors.

    Args:
        samples: its training samples; 0: it does not tell, as their sum is made by secure aggregation.
        input_shape: of one sample.
        num_classes: ``C`` of its data set, classes that it has no sample of included.
        counts: training samples of each class, where ``train_args.proxy_aggregation: class`` weighs rows by them.
        classes: :func:`digest` of its class names; None where they are numbers alone.
    """

    samples: int
    input_shape: tuple[int, ...]
    num_classes: int
    counts: tuple[int, ...] | None = None
    classes: str | None = None

    def meta(self) -> dict[str, Any]:
        """In JSON's types, without what is not told."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items() if v not in (None, 0)}

    def summed(self) -> Facts:
        """What is left to tell where all that can be added is told in a sum alone."""
        return replace(self, samples=0, counts=None)


def digest(names: Sequence[str]) -> str | None:
    """What is told of class names, in their order: 32 hexadecimal digits; None where they are numbers alone.

    Whoever has the same names has the same digits, and nobody else can tell more than by trying names.
    """
    if numbered(names):
        return None
    return hashlib.blake2b(json.dumps(list(names)).encode(), digest_size=16).hexdigest()


def differing(local: Sequence[str], remote: Any, where: str) -> str:
    """The first class of another name, in a sentence; empty where there is none, or one of both lists has no names."""
    if not isinstance(remote, list) or not all(isinstance(name, str) for name in remote):
        return ""
    if len(remote) != len(local):
        return f"{counted(len(local), 'class', 'classes')} here and {len(remote)} {where}"
    apart = [c for c, (a, b) in enumerate(zip(local, remote, strict=True)) if a != b]
    if not apart or numbered(local) or numbered(remote):
        return ""
    more = f" (and {len(apart) - 1} more differ)" if len(apart) > 1 else ""
    names = f"{mistakes.show(local[apart[0]])} here and {mistakes.show(remote[apart[0]])} {where}"
    return f"class {apart[0]} is {names}{more}; use the same data_args.class_names, in the same order, everywhere"


def facts(meta: Mapping[str, Any], *, summed: bool = False) -> Facts:
    """The facts in what a silo sent; ``summed``: without its samples.

    Raises:
        RunError: they are none.
    """
    values: list[Any] = [meta.get(field.name) for field in fields(Facts)]
    samples, shape, classes, counts, names = values
    if summed and (samples, counts) != (None, None):
        raise RunError("it tells its samples, which a run with comm_args.secure_aggregation sums; use the same recipe")
    samples = 0 if summed else samples
    if not summed and not _whole(samples, 1, MOST_SAMPLES):
        raise RunError("its number of samples is not a whole number above 0")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 5 or not all(_whole(n, 1, 10**6) for n in shape):
        raise RunError("its input shape is not a list of whole numbers above 0")
    if math.prod(shape) > MOST_NUMBERS:
        raise RunError(f"its input shape is of more than {MOST_NUMBERS} numbers")
    if not _whole(classes, 1, MOST_CLASSES):
        raise RunError("its number of classes is not a whole number above 0")
    if counts is not None:
        fits = isinstance(counts, list) and len(counts) == classes and all(_whole(n, 0, MOST_SAMPLES) for n in counts)
        if not fits or sum(counts) != samples:
            raise RunError("its class counts are not whole numbers that sum to its samples")
    if names is not None and not (isinstance(names, str) and re.fullmatch("[0-9a-f]{32}", names)):
        raise RunError("its digest of class names is not 32 hexadecimal digits")
    return Facts(samples, tuple(shape), classes, None if counts is None else tuple(counts), names)


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


@dataclass(frozen=True)
class SiloData:
    """A silo's own samples.

    Args:
        data: they alone; the test part is the silo's own test split.
        facts: what is told of them.
        sums: likewise, where all silos' mean and std are made of them.
    """

    data: Data
    facts: Facts
    sums: stats.MomentSums | None = None

    def sent(self) -> dict[str, Tensor]:
        """The sums on the wire."""
        if self.sums is None:
            return {}
        return {"sum": torch.from_numpy(self.sums.first), "squares": torch.from_numpy(self.sums.second)}

    @property
    def train(self) -> NDArray[np.int64]:
        """Indices of its training samples: all of them."""
        return np.arange(len(self.data.train.y))

    @property
    def test(self) -> NDArray[np.int64]:
        """Indices of its own test samples: all of them."""
        return np.arange(len(self.data.test.y))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Its training samples of each class, ``(C,)``."""
        return np.bincount(self.data.train.y, minlength=len(self.data.class_names))


def load(recipe: Recipe, client: int) -> SiloData:
    """The samples of silo ``client`` (from 0): all that its recipe names, or those that the partition deals to it.

    Raises:
        LabelSkewError: the data cannot be had, or there is none.
    """
    if recipe.own_data:
        if data_folder(recipe) is None:
            try:
                recipe.dataset.check(None, download=recipe.data.download)
            except LabelSkewError as error:
                file = clean(recipe.client_specific.data_silo_config[client], 4096)
                raise LabelSkewError(f"{file}: {error}, with labelskew silo data {shlex.quote(file)} PATH") from None
        data = loaded(recipe)
    else:
        data, clients = divided(recipe)
        data = Data(
            _part(data.train, clients.train[client]),
            _part(data.test, clients.test[client]),
            data.class_names,
            data.mean,
            data.std,
        )
    if not len(data.train.y):
        raise LabelSkewError(f"silo {client + 1} has no training sample; give it at least one")
    summary = Facts(
        len(data.train.y), tuple(data.train.x.shape[1:]), len(data.class_names), classes=digest(data.class_names)
    )
    silo = SiloData(data, summary, stats.sums(data.train.x) if recipe.pools_moments else None)
    if recipe.pools_moments and summary.input_shape[0] > MOST_CHANNELS:
        what = f"samples have {summary.input_shape[0]} channels, and sums of {MOST_CHANNELS} are sent at most"
        raise mistake("data_args.mean", what, "numbers of mean and std in the server's recipe")
    if recipe.train.proxy_aggregation == "class":
        silo = replace(silo, facts=replace(summary, counts=tuple(silo.counts.tolist())))
    return silo


def test_data(recipe: Recipe) -> Data | None:
    """The test samples of a server, which holds no others; None where it holds none at all.

    Raises:
        LabelSkewError: they cannot be had.
    """
    if not recipe.validation.server_test_data:
        return None
    folder, download = data_folder(recipe), recipe.data.download
    recipe.dataset.check_test(folder, download=download)
    if not recipe.own_data and "data" in (recipe.data.mean, recipe.data.std):  # of a training part that is here
        return without_training(loaded(recipe))
    data = recipe.dataset.load_test(folder, download=download, seed=recipe.common.random_seed)
    check_form(recipe, data)
    return data


def without_training(data: Data) -> Data:
    """The test part alone."""
    return replace(data, train=Arrays(data.train.x[:0].copy(), data.train.y[:0].copy()))


def said(recipe: Recipe, data: Data) -> Data:
    """The data with the mean and std that the recipe gives, or names; where it says ``data``, they stay."""
    return stats.normalised(data, *(None if word == "data" else word for word in (recipe.data.mean, recipe.data.std)))


def normalised(data: Data, tensors: Mapping[str, Tensor]) -> Data:
    """A silo's data with what the server says that all silos' are normalised by.

    Raises:
        LabelSkewError: it is not a mean and a standard deviation of such samples.
    """
    channels = data.train.x.shape[1]

    def numbers(key: str, least: float) -> stats.Numbers:
        value = tensors.get(key, torch.zeros(0))
        form = value.dtype == torch.float64 and tuple(value.shape) in ((1,), (channels,))
        if not form or not value.isfinite().all() or value.min() <= least:
            what = f"is no number that samples of {counted(channels, 'channel')} can be normalised by"
            raise mistake(f"the server's {key} of all samples", what, "data_args.mean and std in the server's recipe")
        return tuple(value.tolist())

    return replace(data, mean=numbers("mean", -math.inf), std=numbers("std", 0.0))


def sums(tensors: Mapping[str, Tensor], facts: Facts) -> stats.MomentSums:
    """The sums that a silo sent of so many samples of this form.

    Raises:
        RunError: they are none, or no samples have such sums.
    """
    first, second = (tensors.get(name) for name in ("sum", "squares"))
    if first is None or second is None or len(tensors) != 2:
        use = "use the same recipe, without --survey"
        raise RunError(f"it does not send the sums that mean and std are made of (data_args.mean); {use}")
    count, channels = facts.samples * math.prod(facts.input_shape[1:]), facts.input_shape[:1]
    kinds = {first.dtype, second.dtype}
    if not tuple(first.shape) == tuple(second.shape) == channels or kinds not in ({torch.int64}, {torch.float64}):
        raise RunError(f"the sums of its samples are not two times {channels[0]} numbers")
    if torch.int64 in kinds:
        pairs = zip(first.tolist(), second.tolist(), strict=True)  # integers without a largest one
        fits = all(0 <= a <= 255 * count and a * a <= count * b and b <= 255 * a for a, b in pairs)
    else:
        most = torch.finfo(torch.float32).max  # and what is no number is not below it
        fits = bool((first.abs() <= count * most).all() and ((second >= 0) & (second <= count * most**2)).all())
    if not fits:
        raise RunError(f"no {count} values have the sums that it sends of its samples")
    return stats.MomentSums(count, first.numpy(), second.numpy())


def _part(arrays: Arrays, index: NDArray[np.int64]) -> Arrays:
    return Arrays(arrays.x[index], arrays.y[index])


def agreed(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The settings that server and silos have to share, in JSON's types; what a silo decides alone is left out."""
    resolved = portable(recipe)
    sections = {
        "common_args": {"random_seed": recipe.common.random_seed},
        "data_args": recipe.normalisation,
        "model_args": resolved["model_args"],
        "train_args": resolved["train_args"],
        "method_args": _common(recipe.method, resolved["method_args"]),
    }
    if recipe.privacy.noise_multiplier is not None:
        sections["privacy_args"] = {key: resolved["privacy_args"][key] for key in ("noise_multiplier", "clip")}
    if recipe.sums_alone:
        sections["comm_args"] = {k: v for k, v in resolved["comm_args"].items() if k.startswith("secure_")}
    return {name: {key: _exact(value) for key, value in keys.items()} for name, keys in sections.items()}


def _exact(value: Any) -> Any:
    """A value that arrives as it is sent: of one that would be cleaned or cut on its way, a digest."""
    text = json.dumps(value, sort_keys=True)
    return value if wire.cleaned(value) == value else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _common(method: Method, keys: Mapping[str, Any]) -> dict[str, Any]:
    """A method's parameters without those that a silo may choose; of a combination, those of each part."""
    parts = method.parts if isinstance(method, Combined) else {}
    return {k: _common(parts[k], v) if k in parts else v for k, v in keys.items() if k not in method.silo_choices}


def check_agreement(server: Any, recipe: Recipe) -> None:
    """Raise LabelSkewError unless the server's settings are this silo's, naming the first that differ."""
    if not isinstance(server, dict) or not all(isinstance(section, dict) for section in server.values()):
        what = "the server's settings are no sections of keys; use the same version here and there"
        raise shareable(LabelSkewError(what))
    local = agreed(recipe)
    # as text, for true and 1.0 are 1 otherwise
    if differing := different(
        *({s: {k: json.dumps(v) for k, v in p.items()} for s, p in a.items()} for a in (local, server))
    ):
        section, _, key = differing[0].partition(".")
        here, there = (mistakes.show(settings.get(section, {}).get(key)) for settings in (local, server))
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        if made_of := files(recipe).get(key.removesuffix("_sha256")) if key.endswith("_sha256") else None:
            place, use = f"{section}.{key.removesuffix('_sha256')}: {made_of['file']}", "the same file"
            here, there = (f"SHA-256 {digest[1:17]}..." for digest in (here, there))
        else:
            place, use = clean(differing[0]), "the server's recipe"
        error = LabelSkewError(f"{place}: {here} here and {there} at the server{more}; use {use}")
        raise shareable(error, f"{place}: {there} at the server, another value here{more}; use {use}")


def number(meta: Mapping[str, Any], key: str, least: int, most: int, where: str) -> int:
    """A whole number that the server sent.

    Raises:
        LabelSkewError: it is none, or is out of bounds; a line that names it.
    """
    value = meta.get(key)
    if type(value) is not int or not least <= value <= most:
        bounds = f"{least}" if least == most else f"a whole number from {least} to {most}"
        what = f"{where}: {key} is {mistakes.show(value)} at the server"
        raise shareable(LabelSkewError(f"{what}; expected here: {bounds}"), f"{what}, which this silo does not accept")
    return value


def numbers(meta: Mapping[str, Any], key: str, least: int, most: int, where: str) -> set[int]:
    """Whole numbers that the server sent as a list; errors as of :func:`number`."""
    value = meta.get(key)
    values = value if isinstance(value, list) else [value]
    return {number({key: one}, key, least, most, where) for one in values}


def federation(content: Any, recipe: Recipe, facts: Facts) -> Federation:
    """The run as a whole, in what the server said of it.

    Raises:
        LabelSkewError: it is not what this silo's recipe and data make of it; a line that names the first such field.
    """
    where, train = "the server's federation", recipe.train
    if not isinstance(content, dict):
        raise LabelSkewError(f"{where} is {mistakes.show(content)}; expected here: a mapping of names to numbers")
    names = [field.name for field in fields(Federation)]
    if strange := [name for name in content if name not in names]:
        raise LabelSkewError(f"{where}: {clean(strange[0])} is unknown; expected here: {', '.join(names)}")
    exact = {
        "num_clients": train.client_num_in_total,
        "clients_per_round": train.clients_per_round,
        "rounds": train.comm_round,
        "epochs": train.epochs,
        "num_classes": facts.num_classes,
        "seed": recipe.common.random_seed,
    }
    bounds = {name: (value, value) for name, value in exact.items()} | {
        "num_features": (1, MOST_NUMBERS),  # see check_features
        "num_samples": (facts.samples, MOST_SAMPLES * train.client_num_in_total),
        "min_samples": (1, facts.samples),
    }
    if recipe.sums_alone:  # the sum is not known at first, and the smallest silo's number never
        bounds["num_samples"] = (0 if content.get("num_samples") == 0 else facts.samples, bounds["num_samples"][1])
        bounds["min_samples"] = (0, 0)
    return Federation(**{name: number(content, name, *bounds[name], where) for name in names})


def check_features(federation: Federation, model: Any) -> None:
    """Raise LabelSkewError unless this silo's network has as many features as the server says."""
    features = model.classifier.in_features
    number({"num_features": federation.num_features}, "num_features", features, features, "the server's federation")


class OtherClassesError(RunError):
    """A silo's classes are not those of the federation."""


def form(recipe: Recipe, test: Data | None) -> tuple[tuple[int, ...], int]:
    """Shape of one sample, and ``C``: of the server's test samples, or what the recipe says where it holds none."""
    if test is not None:
        return tuple(test.test.x.shape[1:]), len(test.class_names)
    shape, classes = recipe.data.input_shape, classes_of(recipe.data, recipe.dataset.params)
    assert shape is not None  # or the recipe would have been refused
    assert classes is not None
    return tuple(shape), classes


def server_classes(recipe: Recipe, test: Data | None) -> list[str] | None:
    """The class names that a server knows: those of its test samples, or of its recipe; None where it knows none."""
    names = getattr(recipe.dataset.params, "class_names", None) if test is None else test.class_names
    return None if names is None or numbered(names) else list(names)


class Census:
    """What a server knows of all silos' data.

    Args:
        recipe: what is run.
        test: the server's own test samples; None where it holds none.
        sizes: training samples of each silo, kept up to date here; 0 where it has not said, 1 where a sum says it.
        warn: told a client and what an operator should look at.
        summed: whether no silo tells its samples, but secure aggregation their sum.
    """

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
        self._form, self.class_names = form(recipe, test), server_classes(recipe, test)
        self._classes = None if self.class_names is None else digest(self.class_names)
        self._facts: dict[int, Facts] = {}
        self._sums: dict[int, stats.MomentSums] = {}
        self.samples: int | None = 0 if summed else None
        """Of all silos, where no silo tells its own; 0 before the sum is made."""

    def check(self, client: int, facts: Facts) -> None:
        """Raise RunError where a silo's data do not fit the federation, OtherClassesError where its classes do not."""
        shape, classes = self._form
        if (facts.input_shape, facts.num_classes) != (shape, classes):
            raise RunError(
                f"its samples are {facts.input_shape} of {facts.num_classes} classes, the federation's {shape} of "
                f"{classes}; use such data"
            )
        if self._classes is not None and facts.classes not in (None, self._classes):
            raise OtherClassesError("its classes are not the server's, in name or in order")
        others = [k for k, known in sorted(self._facts.items()) if None not in (known.classes, facts.classes)]
        if self._classes is None and (apart := [k for k in others if self._facts[k].classes != facts.classes]):
            what = f"names its classes otherwise than silo {apart[0] + 1}, and which is right is not known here"
            self._warn(client, f"{what}; compare their data_args")
        if facts.samples > (most := self._recipe.comm.max_samples):
            raise RunError(
                f"it says that it has {facts.samples} training samples, and {most} are allowed at most "
                "(comm_args.max_samples of the server)"
            )
        if self.samples is None and self.sizes[client] and self.sizes[client] != facts.samples:
            raise RunError(f"it had {self.sizes[client]} training samples when the run began, now {facts.samples}")

    @property
    def num_classes(self) -> int:
        """``C``."""
        return self._form[1]

    def add(self, client: int, facts: Facts, sums: stats.MomentSums | None = None) -> None:
        """Count a silo that was checked."""
        self._facts[client], self.sizes[client] = facts, facts.samples or 1
        if sums is not None:
            self._sums[client] = sums

    def moments(self, clients: Collection[int]) -> stats.Moments | None:
        """Of the training samples of these silos together; None where none of them has told its sums."""
        parts = [self._sums[client] for client in sorted(clients) if client in self._sums]
        return stats.pooled(parts) if parts else None

    @property
    def exact(self) -> bool:
        """Whether the sums that silos have told are those of uint8 samples."""
        return bool(self._sums) and all(sums.exact for sums in self._sums.values())

    def class_counts(self, session: Session) -> torch.Tensor | None:
        """``(K, C)`` class counts of silos, 0 for one that nobody has heard of; None where they do not tell them."""
        if self._recipe.train.proxy_aggregation != "class" or self.samples is not None:
            return None
        none = [0] * session.federation.num_classes
        rows = [self._facts[k].counts if k in self._facts else None for k in range(len(self.sizes))]
        return torch.tensor([row or none for row in rows]).to(session.trainer.device)

    def federation(self, federation: Federation, without: Collection[int] = ()) -> Federation:
        """The run as a whole, with the samples of all silos, or ``without`` some; of all where none is left."""
        if self.samples is not None:
            return replace(federation, num_samples=self.samples, min_samples=0)
        known = [n for k, n in enumerate(self.sizes) if n and k not in without] or [n for n in self.sizes if n]
        return replace(federation, num_samples=sum(known), min_samples=min(known))
