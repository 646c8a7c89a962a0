"""Objects in place of a recipe's names, from Python alone: a module, data, index lists, a method.

Each becomes a plugin of its kind, so that a run treats it like one that a recipe names.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, Method, Network, Partitioner, mistake
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy

from fl_labelskew_plugins.checked import checked
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.params import Params

SECTIONS = {"model": "model_args", "dataset": "data_args", "method": "method_args", "partition": "partition_args"}
"""Which section's name each of the arguments of :func:`plugins` stands in for."""


def plugins(
    *,
    model: nn.Module | Network | None = None,
    dataset: object = None,
    method: Method | None = None,
    partition: Sequence[Sequence[int]] | Partitioner | None = None,
) -> dict[str, Any]:
    """The objects that are given, as plugins, by the section of a recipe whose name they stand in for.

    Args:
        model: a module that returns logits from a Linear layer, see :class:`ModuleNetwork`; it is copied, not changed.
        dataset: see :func:`data`.
        method: an object of :class:`fl_labelskew_registry.Method`.
        partition: indices of each client's training samples.

    Raises:
        LabelSkewError: one of them cannot stand there.
    """
    if isinstance(model, nn.Module):
        model = ModuleNetwork(model)
    if dataset is not None and not isinstance(dataset, Dataset):
        dataset = GivenData(data(dataset))
    if partition is not None and not isinstance(partition, Partitioner):
        if not isinstance(partition, Sequence | np.ndarray) or isinstance(partition, str):
            raise LabelSkewError(f"partition: {clean(partition)!r} is no list; give a list of indices for each client")
        partition = GivenPartition(partition)
    given = {"model": model, "dataset": dataset, "method": method, "partition": partition}
    kinds = {"model": Network, "dataset": Dataset, "method": Method, "partition": Partitioner}
    for name, plugin in given.items():
        if plugin is not None and not isinstance(plugin, kinds[name]):
            what = "an nn.Module, or name a function in model_args.model of the recipe"
            what = what if name == "model" else "an object of fl_labelskew_registry.Method"
            raise LabelSkewError(f"{name}: {clean(plugin)!r} is a {type(plugin).__name__}; give {what}")
        if plugin is not None and plugin.params is None:  # a class of somebody's own that takes none
            plugin.params = Params()
    return {SECTIONS[name]: checked(plugin) for name, plugin in given.items() if plugin is not None}


def named(plugin: Any) -> str:
    """What a recipe calls an object: the name of its class."""
    return clean(getattr(plugin, "name", type(plugin).__name__), 80)


def described(plugin: Any) -> str:
    """What tells an object from another one, for a run's record; resuming asks for the same."""
    return clean(getattr(plugin, "description", f"{type(plugin).__name__}({plugin.params!s})"), 1000)


class ModuleNetwork(Network):
    """A module of somebody's own as a network: each build is a copy of it, with the weights that it has.

    A module that already has ``features(x)`` and a Linear ``classifier`` is taken as it is. Of any other, the last
    Linear layer with an output for each class is the classifier, and what goes into it are the features; what the
    module returns has to be what that layer returns.

    Args:
        module: takes a batch ``(B, ...)`` and returns logits ``(B, C)``.

    Raises:
        LabelSkewError: it has a lazy layer that has not seen a sample.
    """

    Params = Params

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.name = type(module).__name__
        if lazy := next((name for name, value in module.state_dict().items() if is_lazy(value)), None):
            use = "a module that was called once, such as on torch.zeros(1, *shape)"
            raise mistake(f"model: {self.name}", f"{clean(lazy)} is of a lazy layer and has no shape yet", use)
        shapes = [(name, tuple(value.shape)) for name, value in module.state_dict().items()]
        digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
        self.description = f"{self.name}, {sum(p.numel() for p in module.parameters())} parameters, shapes {digest}"

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A copy with ``features`` and ``classifier``.

        Raises:
            LabelSkewError: which layer is the classifier cannot be told, or the module does not take such samples.
        """
        module = copy.deepcopy(self.module)
        head = getattr(module, "classifier", None)
        if isinstance(head, nn.Linear) and callable(getattr(module, "features", None)):
            if head.out_features != num_classes:
                raise LabelSkewError(self._outputs("classifier", head, num_classes))
            return module
        linear = [(path, layer) for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise LabelSkewError(f"model: {self.name} has no nn.Linear layer; let it end with one, of the classes")
        fitting = [path for path, layer in linear if layer.out_features == num_classes]
        if not fitting:
            raise LabelSkewError(self._outputs(*linear[-1], num_classes))
        whole = Headed(module, fitting[-1])
        self._check(whole, input_shape)
        return whole

    def _outputs(self, path: str, layer: nn.Linear, num_classes: int) -> str:
        return (
            f"model: {path or 'the layer'} of {self.name} has {layer.out_features} outputs, and the data have "
            f"{num_classes} classes; use nn.Linear({layer.in_features}, {num_classes}) there"
        )

    def _check(self, whole: Headed, shape: tuple[int, ...]) -> None:
        """That the classifier's logits are what the module as it was given returns; by copies, as both have a mode."""
        samples = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
        split, given = copy.deepcopy(whole).eval(), copy.deepcopy(self.module).eval()
        for head in (split.classifier, given.get_submodule(whole.path)):
            head.register_forward_hook(_any_logits)
        try:
            with torch.no_grad():
                ours, theirs = split(samples), given(samples)
        except Exception as error:  # of a module of anybody's
            first = clean(next(iter(str(error).splitlines()), type(error).__name__))
            raise LabelSkewError(
                f"model: {self.name} does not take samples of shape {tuple(shape)}: {first}"
            ) from error
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, equal_nan=True):
            raise LabelSkewError(
                f"model: what {self.name} returns is not what its last Linear layer of the classes, {whole.path}, "
                "returns; let forward end with that layer (no softmax after it), or give the module features(x) and "
                "classifier"
            )


class Headed(nn.Module):
    """A module whose last layer stands beside it: ``forward(x) = classifier(features(x))``.

    Args:
        module: the whole one; it is changed.
        path: of its last layer, a Linear.
    """

    def __init__(self, module: nn.Module, path: str) -> None:
        super().__init__()
        self.path = path
        self.classifier = module.get_submodule(path)
        self.body = module if path else nn.Identity()
        if path:
            _put(module, path, nn.Identity())

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs ``(B, ...)`` to features ``(B, d)``."""
        features: torch.Tensor = self.body(x)
        return features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs ``(B, ...)`` to logits ``(B, C)``."""
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits

    def whole(self) -> nn.Module:
        """The module as it was given, with the weights that this one has."""
        if not self.path:
            return self.classifier
        _put(self.body, self.path, self.classifier)
        return self.body


def _any_logits(_: nn.Module, __: object, logits: torch.Tensor) -> torch.Tensor:
    """Logits of either sign in place of a layer's own, which may all be positive where a ReLU comes after it."""
    return torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))


def _put(module: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


class GivenData(Dataset):
    """Data that are in memory already."""

    Params = Params

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data = data
        self.name = "given"
        shape = tuple(data.train.x.shape[1:])
        parts = f"{len(data.train.y)} training and {len(data.test.y)} test samples"
        self.description = f"{parts} of shape {shape}, {len(data.class_names)} classes"

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """The data as they were given."""
        return self.data


def data(given: object) -> Data:
    """Somebody's training and test parts as one data set.

    Args:
        given: a :class:`fl_labelskew_registry.Data`; or two parts, as a pair or as a mapping with ``train`` and
            ``test``, each of them a pair of arrays ``x`` ``(N, ...)`` and ``y`` ``(N,)``, or a torch ``Dataset`` with
            ``targets`` whose items begin with the sample. Classes are named as the training part's ``classes`` are,
            if it has any, else by their numbers.

    Raises:
        LabelSkewError: it is nothing of these.
    """
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping) and given.keys() >= {"train", "test"}:
        train, test = given["train"], given["test"]
    elif isinstance(given, tuple | list) and len(given) == 2:
        train, test = given
    else:
        raise LabelSkewError(
            f"dataset: {type(given).__name__} is no pair of a training and a test part; give (train, test), each of "
            "them (x, y) or a torch Dataset with targets"
        )
    parts = [_part("training", train), _part("test", test)]
    shapes = [part.x.shape[1:] for part in parts]
    if shapes[0] != shapes[1]:
        raise LabelSkewError(f"dataset: samples are of shape {shapes[0]} in training and {shapes[1]} in test")
    classes = 1 + max(int(part.y.max()) for part in parts if len(part.y))
    names = [clean(name, 40) for name in getattr(train, "classes", None) or map(str, range(classes))]
    return Data(parts[0], parts[1], names)


def _part(which: str, part: Any) -> Arrays:
    """One part; what it is not, a line tells."""
    form = "give (x, y), or a torch Dataset with targets"
    if isinstance(part, Arrays):
        return part
    if hasattr(part, "targets") and hasattr(part, "__getitem__"):
        x, y = _stacked(which, [part[k][0] for k in range(len(part))]), _array(part.targets)
    elif isinstance(part, tuple | list) and len(part) == 2:
        try:
            x, y = (_array(array) for array in part)
        except ValueError as error:  # rows of several lengths
            raise LabelSkewError(f"dataset: the {which} part's rows are of several lengths; {form}") from error
    else:
        raise LabelSkewError(f"dataset: the {which} part is a {type(part).__name__}; {form}")
    if not len(y.reshape(-1)):
        raise LabelSkewError(f"dataset: the {which} part has no samples; {form}")
    if x.dtype.kind not in "buif":
        raise LabelSkewError(f"dataset: the {which} part's samples are {x.dtype}, no numbers; give arrays of one shape")
    if x.ndim < 2 or y.shape != (len(x),):
        raise LabelSkewError(
            f"dataset: the {which} part has samples of shape {x.shape} and labels of shape {y.shape}; give (N, ...) "
            "and (N,)"
        )
    if not np.issubdtype(y.dtype, np.integer) or (len(y) and y.min() < 0):
        raise LabelSkewError(f"dataset: the {which} part's labels are not numbers of classes; use integers from 0")
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
    return Arrays(np.ascontiguousarray(x), y.astype(np.int64))


def _stacked(which: str, samples: Sequence[Any]) -> NDArray[Any]:
    """Samples of a torch ``Dataset`` as one array."""
    if others := {type(sample).__name__ for sample in samples if not isinstance(sample, torch.Tensor | np.ndarray)}:
        raise LabelSkewError(
            f"dataset: the {which} part's samples are of type {min(others)}; give the Dataset a transform to tensors, "
            "such as torchvision.transforms.ToTensor()"
        )
    if len(shapes := {tuple(sample.shape) for sample in samples}) > 1:
        raise LabelSkewError(f"dataset: the {which} part's samples are of {len(shapes)} shapes; resize them to one")
    return np.stack([_array(sample) for sample in samples]) if samples else np.zeros(0)


def _array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


class GivenPartition(Partitioner):
    """Index lists, one a client."""

    Params = Params

    def __init__(self, indices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.indices = [np.asarray(part) for part in indices]
        self.name = "given"
        self.description = f"{len(self.indices)} lists of indices"

    def split(
        self, labels: NDArray[Any], groups: NDArray[Any] | None, *, clients: int, rng: np.random.Generator
    ) -> list[NDArray[Any]]:
        """The lists as they were given.

        Raises:
            LabelSkewError: they are for another number of clients.
        """
        if len(self.indices) != clients:
            raise LabelSkewError(
                f"partition: {self.description} for {clients} clients; load the recipe with "
                f"{{'train_args.client_num_in_total': {len(self.indices)}}}"
            )
        return self.indices
