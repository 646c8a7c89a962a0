"""What silo and server know of each other: facts that a silo tells, settings that both have to share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from fl_labelskew_registry import Arrays, Data, LabelSkewError, Method, RunError
from numpy.typing import NDArray

from fl_labelskew_plugins.combine import Combined
from fl_labelskew_plugins.data.clients import class_counts
from fl_labelskew_plugins.recipe import Recipe, different
from fl_labelskew_plugins.session import data_folder, divided, loaded

MOST_SAMPLES = 10**12


@dataclass(frozen=True)
class Facts:
    """What a silo tells before anything else, and all that it tells of its data beside the method's own tensors.

    Args:
        samples: its training samples.
        input_shape: of one sample.
        num_classes: ``C`` of its data set, classes that it has no sample of included.
        counts: training samples of each class, where ``train_args.proxy_aggregation: class`` weighs rows by them.
    """

    samples: int
    input_shape: tuple[int, ...]
    num_classes: int
    counts: tuple[int, ...] | None = None

    def meta(self) -> dict[str, Any]:
        """In JSON's types."""
        plain: dict[str, Any] = {
            "samples": self.samples,
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
        }
        return plain if self.counts is None else {**plain, "counts": list(self.counts)}


def facts(meta: Mapping[str, Any]) -> Facts:
    """The facts in what a silo sent.

    Raises:
        RunError: they are none.
    """
    told: list[Any] = [meta.get(key) for key in ("samples", "input_shape", "num_classes", "counts")]
    samples, shape, classes, counts = told
    if not _whole(samples, 1, MOST_SAMPLES):
        raise RunError("its number of samples is not a whole number above 0")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 5 or not all(_whole(n, 1, 10**6) for n in shape):
        raise RunError("its input shape is not a list of whole numbers above 0")
    if not _whole(classes, 1, 10**6):
        raise RunError("its number of classes is not a whole number above 0")
    if counts is not None:
        fits = isinstance(counts, list) and len(counts) == classes and all(_whole(n, 0, MOST_SAMPLES) for n in counts)
        if not fits or sum(counts) != samples:
            raise RunError("its class counts are not whole numbers that sum to its samples")
    return Facts(samples, tuple(shape), classes, None if counts is None else tuple(counts))


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


@dataclass(frozen=True)
class SiloData:
    """A silo's own samples.

    Args:
        data: they alone; the test part is the silo's own test split.
        facts: what is told of them.
    """

    data: Data
    facts: Facts

    @property
    def train(self) -> NDArray[np.int64]:
        """Indices of its training samples: all of them."""
        return np.arange(len(self.data.train.y))

    @property
    def test(self) -> NDArray[np.int64]:
        """Indices of its own test samples: all of them."""
        return np.arange(len(self.data.test.y))


def load(recipe: Recipe, client: int) -> SiloData:
    """The samples of silo ``client`` (from 0).

    Args:
        recipe: the silo's own; where it has data of its own, all of them, else those that the partition deals to it.
        client: which silo.

    Raises:
        LabelSkewError: the data cannot be had, or there is none.
    """
    if recipe.own_data:
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
        raise LabelSkewError(f"silo {client + 1} has no training sample; at least one would be right")
    classes = len(data.class_names)
    counts = None
    if recipe.train.proxy_aggregation == "class":
        rows = class_counts(data.train.y, [np.arange(len(data.train.y))], classes)
        counts = tuple(int(n) for n in rows[0])
    told = Facts(len(data.train.y), tuple(data.train.x.shape[1:]), classes, counts)
    return SiloData(data, told)


def test_data(recipe: Recipe) -> Data | None:
    """The test samples of a server, which holds no others; None where it holds none at all.

    Raises:
        LabelSkewError: they cannot be had.
    """
    if not recipe.validation.server_test_data:
        return None
    folder, download = data_folder(recipe), recipe.data.download
    recipe.dataset.check_test(folder, download=download)
    return recipe.dataset.load_test(folder, download=download, seed=recipe.common.random_seed)


def _part(arrays: Arrays, index: NDArray[np.int64]) -> Arrays:
    return Arrays(arrays.x[index], arrays.y[index])


def agreed(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The settings that server and silos have to share, in JSON's types; what a silo decides alone is left out."""
    resolved = recipe.resolved()
    return {
        "common_args": {"random_seed": recipe.common.random_seed},
        "model_args": resolved["model_args"],
        "train_args": resolved["train_args"],
        "method_args": _common(recipe.method, resolved["method_args"]),
    }


def _common(method: Method, keys: Mapping[str, Any]) -> dict[str, Any]:
    """A method's parameters without those that a silo may choose; of a combination, those of each part."""
    parts = method.parts if isinstance(method, Combined) else {}
    return {k: _common(parts[k], v) if k in parts else v for k, v in keys.items() if k not in method.silo_choices}


def check_agreement(server: Any, recipe: Recipe) -> None:
    """Raise LabelSkewError unless the server's settings are this silo's, naming the first that differ."""
    if not isinstance(server, dict) or not all(isinstance(section, dict) for section in server.values()):
        raise LabelSkewError("the server's settings are no sections of keys; the same version here and there is right")
    mine = agreed(recipe)
    if differing := different(mine, server):
        section, _, key = differing[0].partition(".")
        here, there = mine.get(section, {}).get(key), server.get(section, {}).get(key)
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise LabelSkewError(
            f"{differing[0]}: {here!r} here and {there!r} at the server{more}; the server's recipe would be right"
        )
