"""Checks of hooks' return values and state, by types and shapes; fast enough for each batch."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

from fl_labelskew_registry.contracts import Method

TERM = re.compile(r"(?!.{41})[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*")  # names of loss terms, in files and on terminals
Check = Callable[..., str]


def problem(plugin: Any, contract: type, hook: str, answer: Any, *given: Any) -> str:
    """Describe the violation in the ``answer`` of a hook of ``contract``; empty if it is valid.

    ``given``: positional arguments of the call.

    >>> from fl_labelskew_registry import Method
    >>> problem(None, Method, "deviations", "none")
    'returned a str; expected list[str]'
    """
    annotation, text = _annotated(contract, hook)
    if annotation is not None and not _fits(answer, annotation):
        return f"returned {_wrong_entry(answer, annotation) or described(answer)}; expected {text}"
    if hook in ("before_round", "after_round"):
        state, tensors = getattr(given[0], "client", given[0]).state, _annotated(Method, "contribute")[0]
        wrong = _wrong_entry(state, tensors) if isinstance(state, dict) else described(state)
        return wrong and f"left {wrong} in client.state; expected names and tensors, for example torch.as_tensor(value)"
    if hook in SHAPES:
        expected = SHAPES[hook](plugin, *given)
        return "" if tuple(answer.shape) == expected else f"returned {described(answer)}; expected shape {expected}"
    return CHECKS[hook](plugin, answer, *given) if hook in CHECKS else ""


def described(value: object) -> str:
    """The type of a value, and the shape of an array."""
    if value is None:
        return "None"
    if hasattr(value, "shape"):
        return f"a {'tensor' if hasattr(value, 'requires_grad') else 'numpy array'} of shape {tuple(value.shape)}"
    name = "empty dict" if isinstance(value, Mapping) and not value else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


@cache
def _annotated(contract: type, hook: str) -> tuple[Any, str]:
    """Return type of a hook, and its text; None if any value is valid."""
    from torch import Tensor, nn

    if hook in ("features", "forward"):  # of a network's module
        return Tensor, "a tensor"
    text = str(inspect.signature(getattr(contract, hook)).return_annotation)
    text = text.replace("Tensors", "Mapping[str, Tensor]")
    names = {**vars(sys.modules[contract.__module__]), "Tensor": Tensor, "nn": nn, "Mapping": Mapping}
    return (None if "NDArray" in text else eval(text, names)), text


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value has a type; of tuples, only the first element type is compared."""
    kind, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if kind is UnionType:
        return any(value is None if part is type(None) else _fits(value, part) for part in parts)
    if kind in (dict, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if kind in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(_fits(part, parts[0]) for part in value)
    return isinstance(value, kind or annotation)


def _wrong_entry(value: Any, annotation: Any) -> str:
    """The first entry with a wrong type, such as ``a float as 'n'``, if any."""
    if not isinstance(value, Mapping) or get_origin(annotation) not in (dict, Mapping):
        return ""
    name_type, entry_type = get_args(annotation)
    wrong = (k for k, entry in value.items() if not (_fits(k, name_type) and _fits(entry, entry_type)))
    return next((f"{described(value[name])} as {name!r}" for name in wrong), "")


def _stages(_: object, stages: Any, *__: Any) -> str:
    if (uploads := sum(stage.upload for stage in stages)) != 1:
        return f"returned {uploads} stages with upload=True; expected exactly one"
    empty = next((stage.name for stage in stages if not stage.epochs > 0), None)
    return "" if empty is None else f"returned stage {empty!r} with 0 epochs; expected more than 0"


def _terms(_: object, terms: Any, *__: Any) -> str:
    for name, term in terms.items():
        if not TERM.fullmatch(name):
            expected = "at most 40 letters, digits and _+-, with single dots between them"
            return f"returned a term named {name[:40]!r}; expected {expected}"
        if term.numel() != 1:
            return f"returned {described(term)} as {name!r}; expected scalars"
    return ""


def _loss(plugin: object, terms: Any, *__: Any) -> str:
    from torch import is_grad_enabled

    if not terms:
        return "returned an empty dict; expected terms, for example {'cross_entropy': cross_entropy(logits, labels)}"
    if is_grad_enabled() and not any(term.requires_grad for term in terms.values()):
        return "returned terms without a gradient; compute them from batch.logits, batch.features or client.model"
    return _terms(plugin, terms)


def _sent(announcing: str) -> Check:
    """A check of tensors to send, by the shapes that the hook ``announcing`` returns."""

    def check(plugin: Any, answer: Any, client: Any) -> str:
        announced = getattr(plugin, announcing)(client.federation) if answer else {}
        for name, value in answer.items():
            expected = announced.get(name)
            if expected is None or tuple(value.shape) != tuple(expected):
                return f"returned {name!r} of shape {tuple(value.shape)}, but {announcing} announces {expected}"
            if str(value.dtype) not in ("torch.float32", "torch.float64", "torch.int64"):
                return f"returned {name!r} as {value.dtype}; expected float32, float64 or int64"
        return ""

    return check


def _build(_: object, module: Any, shape: object, classes: int) -> str:
    head = getattr(module, "classifier", None)
    if not callable(getattr(module, "features", None)):
        return "returned a module without features; add features(x), which returns (B, d)"
    valid = getattr(head, "out_features", None) == classes
    return "" if valid else f"returned a module with classifier {head}; expected torch.nn.Linear(d, {classes})"


def _load(_: object, data: Any, *__: Any) -> str:
    for name, part in (("train", data.train), ("test", data.test)):
        if getattr(part.y, "shape", None) != (len(part.x),) or part.y.dtype.kind not in "iu":
            return f"returned {described(part.y)} as {name}.y; expected an array of {len(part.x)} integers"
    return ""


SHAPES: dict[str, Callable[..., tuple[int, ...]]] = {
    "calibrate": lambda _, logits, client: tuple(logits.shape),
    "private_logits": lambda _, inputs, client: (len(inputs), client.federation.num_classes),
    "features": lambda module, inputs: (len(inputs), module.classifier.in_features),
    "forward": lambda module, inputs: (len(inputs), module.classifier.out_features),
}
"""Shapes of hooks that return one tensor, from the plugin and the hook's arguments."""
CHECKS: dict[str, Check] = {
    "stages": _stages,
    "terms": _terms,
    "loss": _loss,
    "opening": _sent("opening_shapes"),
    "contribute": _sent("contribution_shapes"),
    "build": _build,
    "load": _load,
}
"""Further checks, of the plugin, the answer and the hook's arguments."""
