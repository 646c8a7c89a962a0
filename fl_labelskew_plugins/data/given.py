"""Data sets and partitions from Python objects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, Partitioner
from numpy.random import Generator
from numpy.typing import NDArray

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.partition.base import Indices


class GivenPartition(Partitioner):
    """One index list per client."""

    name = "given"

    def __init__(self, indices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.indices = [np.asarray(part) for part in indices]
        self.description = f"{len(self.indices)} lists of indices"

    def split(self, labels: Indices, groups: Indices | None, *, clients: int, rng: Generator) -> list[NDArray[Any]]:
        if len(self.indices) != clients:
            change = {"train_args.client_num_in_total": len(self.indices)}
            problem = f"got {self.description} for {clients} clients"
            raise LabelSkewError(f"partition: {problem}; load the recipe with {change}")
        return self.indices


class GivenData(Dataset):
    """A data set in memory."""

    name = "given"

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data = data
        shape = tuple(data.train.x.shape[1:])
        parts = f"{len(data.train.y)} training and {len(data.test.y)} test samples"
        self.description = f"{parts} of shape {shape}, {len(data.class_names)} classes"

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self.data


def given_data(given: object) -> Data:
    """Convert a pair or mapping of ``train`` and ``test`` to one data set. Raise LabelSkewError for other objects.

    Each part is a pair of arrays ``x`` ``(N, ...)`` and ``y`` ``(N,)``, or a torch ``Dataset`` with ``targets`` and,
    optionally, ``classes``. Its items begin with the sample.
    """
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping) and given.keys() >= {"train", "test"}:
        train, test = given["train"], given["test"]
    elif isinstance(given, tuple | list) and len(given) == 2:
        train, test = given
    else:
        use = "give (train, test), each of them (x, y) or a torch Dataset with targets"
        raise LabelSkewError(f"dataset: {type(given).__name__} is not a pair of a training and a test part; {use}")
    parts = [_part("training", train), _part("test", test)]
    shapes = [part.x.shape[1:] for part in parts]
    if shapes[0] != shapes[1]:
        raise LabelSkewError(f"dataset: samples are of shape {shapes[0]} in training and {shapes[1]} in test")
    classes = 1 + max(int(part.y.max()) for part in parts if len(part.y))  # Arrays may be empty
    names = [clean(name, 40) for name in getattr(train, "classes", None) or map(str, range(classes))]
    return Data(parts[0], parts[1], names)


def _part(which: str, part: Any) -> Arrays:
    form = "give (x, y), or a torch Dataset with targets"
    if isinstance(part, Arrays):
        return part
    if hasattr(part, "targets") and hasattr(part, "__getitem__"):
        x, y = _stacked(which, [part[k][0] for k in range(len(part))]), _array(part.targets)
    elif isinstance(part, tuple | list) and len(part) == 2:
        try:
            x, y = (_array(array) for array in part)
        except ValueError as error:  # rows of different lengths
            raise LabelSkewError(f"dataset: the {which} part's rows have different lengths; {form}") from error
    else:
        raise LabelSkewError(f"dataset: the {which} part is a {type(part).__name__}; {form}")
    if not y.size:
        raise LabelSkewError(f"dataset: the {which} part has no samples; {form}")
    if x.dtype.kind not in "buif":
        raise LabelSkewError(f"dataset: the {which} part's samples are {x.dtype}, not numbers; give numeric arrays")
    if x.ndim < 2 or y.shape != (len(x),):
        problem = f"samples of shape {x.shape} and labels of shape {y.shape}"
        raise LabelSkewError(f"dataset: the {which} part has {problem}; give (N, ...) and (N,)")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise LabelSkewError(f"dataset: the {which} part's labels are not class numbers; use integers from 0")
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
    return Arrays(np.ascontiguousarray(x), y.astype(np.int64))


def _stacked(which: str, samples: Sequence[Any]) -> NDArray[Any]:
    if others := {type(sample).__name__ for sample in samples if not isinstance(sample, torch.Tensor | np.ndarray)}:
        use = "give the Dataset a transform to tensors, such as torchvision.transforms.ToTensor()"
        raise LabelSkewError(f"dataset: the {which} part's samples are of type {min(others)}; {use}")
    if len(shapes := {tuple(sample.shape) for sample in samples}) > 1:
        raise LabelSkewError(f"dataset: the {which} part's samples have {len(shapes)} shapes; resize them to one")
    return np.stack([_array(sample) for sample in samples]) if samples else np.zeros(0)


def _array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
