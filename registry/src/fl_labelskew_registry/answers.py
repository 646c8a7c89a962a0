"""What is wrong with what a plugin's hook returned or left behind: by the contract's annotations, and a few shapes.

Runs and tests of plugins ask :func:`problem`. Only types and shapes are looked at, so that it costs nothing in a batch.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

from fl_labelskew_registry.contracts import Method

TERM = re.compile(r"[A-Za-z0-9._+-]{1,40}")
"""Names of terms of a loss, which go into files and onto terminals."""
Check = Callable[..., str]


def problem(plugin: Any, contract: type, hook: str, answer: Any, *given: Any) -> str:
    """What is wrong with the ``answer`` of a hook, and what is expected; empty if nothing is.

    Args:
        plugin: the object.
        contract: its base class in this package.
        hook: name of the hook.
        answer: what it returned.
        given: positional arguments that it was called with.

    >>> from fl_labelskew_registry import Method
    >>> problem(None, Method, "deviations", "none")
    'returned a str; expected list[str]'
    """
    form, text = _annotated(contract, hook)
    if form is not None and not _fits(answer, form):
        return f"returned {_wrong_entry(answer, form) or described(answer)}; expected {text}"
    if hook in ("before_round", "after_round"):
        state = getattr(given[0], "client", given[0]).state
        wrong = (
            _wrong_entry(state, _annotated(Method, "contribute")[0]) if isinstance(state, dict) else described(state)
        )
        return wrong and f"left {wrong} in client.state; expected names and tensors, such as torch.as_tensor makes"
    if hook in SHAPES:
        expected = SHAPES[hook](plugin, *given)
        return "" if tuple(answer.shape) == expected else f"returned {described(answer)}; expected shape {expected}"
    return OTHERS[hook](plugin, answer, *given) if hook in OTHERS else ""


def described(value: object) -> str:
    """A value for an error message: its type, of arrays also the shape."""
    if value is None:
        return "None"
    if hasattr(value, "shape"):
        return f"a {'tensor' if hasattr(value, 'requires_grad') else 'numpy array'} of shape {tuple(value.shape)}"
    name = "empty dict" if isinstance(value, Mapping) and not value else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


@cache
def _annotated(contract: type, hook: str) -> tuple[Any, str]:
    """The type of a hook's answer by its contract, and how the contract writes it; None: any answer is right."""
    from torch import Tensor, nn

    if hook in ("features", "forward"):  # of a network's module
        return Tensor, "a tensor"
    text = str(inspect.signature(getattr(contract, hook)).return_annotation)
    text = text.replace("Tensors", "Mapping[str, Tensor]")
    names = {**vars(sys.modules[contract.__module__]), "Tensor": Tensor, "nn": nn, "Mapping": Mapping}
    return (None if "NDArray" in text else eval(text, names)), text


def _fits(value: Any, form: Any) -> bool:
    """Whether a value is of a type; of tuples, only the first type counts."""
    kind, parts = get_origin(form), get_args(form)
    if form is Any:
        return True
    if kind is UnionType:
        return any(value is None if part is type(None) else _fits(value, part) for part in parts)
    if kind in (dict, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if kind in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(_fits(part, parts[0]) for part in value)
    return isinstance(value, kind or form)


def _wrong_entry(value: Any, form: Any) -> str:
    """The first entry of a mapping that is not of its type, such as ``a float as 'n'``; empty if there is none."""
    if not isinstance(value, Mapping) or get_origin(form) not in (dict, Mapping):
        return ""
    name_form, entry_form = get_args(form)
    wrong = (k for k, entry in value.items() if not (_fits(k, name_form) and _fits(entry, entry_form)))
    return next((f"{described(value[name])} as {name!r}" for name in wrong), "")


def _stages(_: object, stages: Any, *__: Any) -> str:
    if (uploads := sum(stage.upload for stage in stages)) != 1:
        return f"returned {uploads} stages with upload=True; give exactly one upload=True, all others upload=False"
    empty = next((stage.name for stage in stages if not stage.epochs > 0), None)
    return "" if empty is None else f"returned stage {empty!r} of 0 epochs; give each stage more than 0"


def _terms(_: object, terms: Any, *__: Any) -> str:
    for name, term in terms.items():
        if not TERM.fullmatch(name):
            return f"returned a term named {name[:40]!r}; expected letters, digits and ._+-, 40 of them at most"
        if term.numel() != 1:
            return f"returned {described(term)} as {name!r}; expected scalars"
    return ""


def _loss(plugin: object, terms: Any, *__: Any) -> str:
    from torch import is_grad_enabled

    if not terms:
        return "returned an empty dict; expected terms, such as {'cross_entropy': cross_entropy(logits, labels)}"
    if is_grad_enabled() and not any(term.requires_grad for term in terms.values()):
        return "returned terms without a gradient; compute them from batch.logits, batch.features or client.model"
    return _terms(plugin, terms)


def _sent(announcing: str) -> Check:
    """A check of tensors that leave a client, whose shapes the hook ``announcing`` returns."""

    def check(plugin: Any, answer: Any, client: Any) -> str:
        announced = getattr(plugin, announcing)(client.federation) if answer else {}
        for name, value in answer.items():
            expected = announced.get(name)
            if expected is None or tuple(value.shape) != tuple(expected):
                return f"returned {name!r} of shape {tuple(value.shape)}, and {announcing} announces {expected}"
            if str(value.dtype) not in ("torch.float32", "torch.float64", "torch.int64"):
                return f"returned {name!r} as {value.dtype}; expected float32, float64 or int64"
        return ""

    return check


def _build(_: object, module: Any, shape: object, classes: int) -> str:
    head = getattr(module, "classifier", None)
    if not callable(getattr(module, "features", None)):
        return "returned a module without features; give it features(x), which returns (B, d)"
    right = getattr(head, "out_features", None) == classes
    return "" if right else f"returned a module whose classifier is {head}; give it torch.nn.Linear(d, {classes})"


def _load(_: object, data: Any, *__: Any) -> str:
    for name, part in (("train", data.train), ("test", data.test)):
        if getattr(part.y, "shape", None) != (len(part.x),) or part.y.dtype.kind not in "iu":
            return f"returned {described(part.y)} as {name}.y; expected an array of {len(part.x)} whole numbers"
    return ""


SHAPES: dict[str, Callable[..., tuple[int, ...]]] = {
    "calibrate": lambda _, logits, client: tuple(logits.shape),
    "private_logits": lambda _, inputs, client: (len(inputs), client.federation.num_classes),
    "features": lambda module, inputs: (len(inputs), module.classifier.in_features),
    "forward": lambda module, inputs: (len(inputs), module.classifier.out_features),
}
"""Hooks that return one tensor, and its shape, by the plugin and what the hook was called with."""
OTHERS: dict[str, Check] = {
    "stages": _stages,
    "terms": _terms,
    "loss": _loss,
    "opening": _sent("opening_shapes"),
    "contribute": _sent("contribution_shapes"),
    "build": _build,
    "load": _load,
}
"""Further checks of hooks; each gets the plugin, the answer, and what the hook was called with."""
