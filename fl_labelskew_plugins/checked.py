"""Plugins of other packages as runtimes call them: what a hook returns is checked, what it raises is told in its terms.

:func:`checked` puts a :class:`Hook` in front of every hook of such a plugin. What it returned wrongly is one line; what
it raised is one line, and the frames of its author's own code. Only types and shapes are looked at, so that it costs
nothing in a batch. This package's own plugins are called as they are, and keep their whole traceback.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from fl_labelskew_registry import (
    HOOKS,
    Arrays,
    Data,
    Dataset,
    LabelSkewError,
    Method,
    Network,
    Optimizer,
    Partitioner,
    Stage,
)
from torch import Tensor, float32, float64, int64, is_grad_enabled, nn

from fl_labelskew_plugins.machine.text import TERM, clean

T = TypeVar("T")

OURS = {"fl_labelskew_plugins", "fl_labelskew_registry"}
OTHERS = {"torch", "fedml", *OURS, *sys.stdlib_module_names}
"""Packages whose frames are no author's."""
SENT = (float32, float64, int64)
"""Types of tensors that leave a client."""


class HookError(LabelSkewError):
    """A hook of a plugin of another package that failed, or returned what it must not; frames of the author's code."""

    exit_code = 1

    def __init__(self, line: str, frames: str = "") -> None:
        super().__init__(line)
        self.frames = frames


def checked(plugin: T, *, of: object = None) -> T:
    """The same plugin; if it is of another package, with a :class:`Hook` in front of each of its hooks.

    ``of``: what made it, where that is what has an author, as with a network's module.
    """
    kind = type(plugin if of is None else of)
    if package(kind) not in OURS:
        contract = next(contract for contract in CHECKS if isinstance(plugin, contract))
        hooks = HOOKS.get(contract, CHECKS[contract])
        vars(plugin).update({name: Hook(plugin, name, kind, vars(plugin).get(name)) for name in hooks})
    return plugin


class Hook:
    """A hook of a plugin, checked.

    ``kind``: the class whose author's it is; ``given``: what the object has in place of its class's function.
    """

    def __init__(self, owner: Any, name: str, kind: type, given: Callable[..., Any] | None = None) -> None:
        self.owner, self.name, self.kind, self.given = owner, name, kind, given
        self.check = next(hooks for contract, hooks in CHECKS.items() if isinstance(owner, contract)).get(name)
        self.function = given

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (self.owner, self.name, self.kind, self.given)  # a copy of the plugin has hooks of its own

    def __str__(self) -> str:
        return f"{type(self.owner).__qualname__}.{self.name} ({self.kind.__module__})"

    def __call__(self, *args: Any, **more: Any) -> Any:
        """What the hook returns.

        Raises:
            HookError: it is not what the contract says, or the author's code raised something.
        """
        if self.function is None:
            hook = inspect.getattr_static(type(self.owner), self.name, None)
            # a network's features may be a module in it
            self.function = (
                self.owner._modules[self.name] if hook is None else hook.__get__(self.owner, type(self.owner))
            )
        try:
            answer = self.function(*args, **more)
        except LabelSkewError:
            raise
        except Exception as error:
            if frames := _frames(error, self.kind):
                raise HookError(f"{self} raised {_said(error)}", frames) from error
            raise
        if self.check is not None and (wrong := self.check(self.owner, answer, *args)):
            raise HookError(f"{self} {wrong}")
        return answer


def hook_name(plugin: Any, *hooks: str) -> str:
    """The overridden ones of a plugin's hooks, as ``Class.hook (module)``; of combined methods, those of each part."""
    names = []
    for part in getattr(plugin, "parts", {"": plugin}).values():
        kind = type(part)
        if used := " or ".join(hook for hook in hooks if part.uses(hook)):
            names.append(f"{kind.__qualname__}.{used} ({kind.__module__})")
    return " or ".join(names) or type(plugin).__qualname__


def backward(total: Tensor, method: Method) -> None:
    """The gradients of a loss; a loss that has none for a reason of its own is its author's affair."""
    try:
        total.backward()  # type: ignore[no-untyped-call]
    except LabelSkewError:
        raise
    except Exception as error:
        carrier = getattr(method, "carrier", None) or method
        parts = getattr(carrier, "parts", {"": carrier}).values()
        part = next((part for part in parts if package(type(part)) not in OURS), None)
        if part is None:
            raise
        hook = next((hook for hook in ("loss", "terms", "calibrate") if part.uses(hook)), "loss")
        raise HookError(
            f"{hook_name(part, hook)}: its gradient raised {_said(error)}", _frames(error, type(part))
        ) from error


def package(kind: type) -> str:
    """The package at the top of a class's module."""
    return kind.__module__.partition(".")[0]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {clean(' '.join(str(error).split()), 300)}".removesuffix(": ")


def _frames(error: Exception, kind: type) -> str:
    """The frames of an error that are of the author's code, as Python shows them; empty if there are none."""
    authors = {package(base) for base in kind.__mro__} - OTHERS
    library = sysconfig.get_path("stdlib")

    def is_own(frame: Any) -> bool:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        # what is installed is another's, but for the author's own package
        installed = file.startswith(("<", library)) or "site-packages" in file or "dist-packages" in file
        return top in authors or not (top in OTHERS or installed)

    authors_frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_own(frame)]
    return "".join(traceback.StackSummary.extract(iter(authors_frames)).format()).rstrip()


# What is wrong with what a hook returned, or left behind; empty if nothing is. Each gets the plugin, the answer, and
# what the hook was called with.


def _what(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor | np.ndarray):
        return f"a {'tensor' if isinstance(value, Tensor) else 'numpy array'} of shape {tuple(value.shape)}"
    name = "empty dict" if isinstance(value, Mapping) and not value else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _not_tensors(value: object, form: str, verb: str = "returned", where: str = "") -> str:
    if not isinstance(value, dict if where else Mapping):
        return f"{verb} {_what(value)}{where and f' as {where}'}; {form}"
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            place = f"{where}[{name!r}]" if where else repr(name)
            return f"{verb} {_what(tensor)} as {place}; use names and tensors, such as torch.as_tensor makes"
    return ""


def _tensors(owner: object, answer: object, *_: Any) -> str:
    return _not_tensors(answer, "return a dict of tensors, an empty one for none")


def _tensors_or_none(owner: object, answer: object, *_: Any) -> str:
    return "" if answer is None else _not_tensors(answer, "return a state dict, or None where there is no model")


def _kept(tensors: object, where: str) -> str:
    return _not_tensors(tensors, "keep a dict of tensors", "left", where)


def _like(owner: object, answer: object, old: Mapping[str, Tensor], *_: Any) -> str:
    if wrong := _not_tensors(answer, "return a dict of tensors like the one that it was given"):
        return wrong
    assert isinstance(answer, Mapping)
    if missing := old.keys() - answer.keys():
        return f"returned a dict without {min(missing)!r}; return every tensor that it was given, changed or not"
    if strange := answer.keys() - old.keys():
        return f"returned {min(strange)!r}, which it was not given; return the tensors that it was given, and no others"
    for name, value in answer.items():
        if value.shape != old[name].shape or value.dtype != old[name].dtype:
            return (
                f"returned {name!r} as {value.dtype} of shape {tuple(value.shape)}; keep {old[name].dtype} of shape "
                f"{tuple(old[name].shape)}"
            )
    return ""


def _shapes(owner: object, answer: object, *_: Any) -> str:
    form = "return a dict of names and shapes, such as {'counts': (10,)}"
    if not isinstance(answer, Mapping):
        return f"returned {_what(answer)}; {form}"
    for name, shape in answer.items():
        if not isinstance(shape, tuple | list) or not all(isinstance(size, int) for size in shape):
            return f"returned {_what(shape)} as {name!r}; {form}"
    return ""


def _passes(test: Callable[..., bool], form: str) -> Callable[..., str]:
    """A check by a test of the answer and what the hook was called with."""

    def check(owner: object, answer: object, *given: Any) -> str:
        return "" if test(answer, *given) else f"returned {_what(answer)}; {form}"

    return check


def _list_of(kind: Callable[[Any], bool]) -> Callable[..., bool]:
    return lambda answer, *_: isinstance(answer, list | tuple) and all(map(kind, answer))


_sentences = _passes(
    _list_of(lambda sentence: isinstance(sentence, str)), "return a list of sentences, an empty one for none"
)
_facts = _passes(lambda answer, *_: isinstance(answer, Mapping), "return a dict, an empty one for none")
_bool = _passes(lambda answer, *_: isinstance(answer, bool), "return True or False")
_rows = _passes(
    _list_of(lambda row: isinstance(row, tuple) and len(row) == 3), "return a list of rows (what, found, expected)"
)


def _stages(owner: object, answer: object, *_: Any) -> str:
    if not isinstance(answer, Sequence) or not answer or not all(isinstance(stage, Stage) for stage in answer):
        return f"returned {_what(answer)}; return a list of Stage, at least one"
    if uploads := sum(stage.upload for stage in answer) - 1:
        return f"returned {uploads + 1} stages with upload=True; give exactly one upload=True, all others upload=False"
    for stage in answer:
        if not stage.epochs > 0:
            return f"returned stage {stage.name!r} of {stage.epochs:g} epochs; give each stage more than 0"
    return ""


def _after_client(owner: object, answer: object, client: Any, *_: Any) -> str:
    return _kept(client.state, "client.state")


def _sent(announcing: str) -> Callable[..., str]:
    """A check of tensors that leave a client, by what the hook ``announcing`` returns."""

    def check(owner: Any, answer: Any, client: Any) -> str:
        if wrong := _tensors(owner, answer) or _kept(client.state, "client.state"):
            return wrong
        announced = getattr(owner, announcing)(client.federation) if answer else {}
        for name, value in answer.items():
            shape, expected = tuple(value.shape), announced.get(name)
            if expected is None:
                return f"returned {name!r}, which {announcing} does not announce; let that return {{{name!r}: {shape}}}"
            if shape != tuple(expected):
                form = f"{announcing} announces {tuple(expected)}; return the same shape from both"
                return f"returned {name!r} of shape {shape}, and {form}"
            if value.dtype not in SENT:
                return f"returned {name!r} as {value.dtype}; return float32, float64 or int64, such as {name}.float()"
        return ""

    return check


def _modules(owner: object, answer: object, *_: Any) -> str:
    form = "return a dict of names and modules, such as {'projection': torch.nn.Linear(64, 32)}"
    if not isinstance(answer, Mapping) or not all(isinstance(module, nn.Module) for module in answer.values()):
        return f"returned {_what(answer)}; {form}"
    for name in answer:
        if not isinstance(name, str) or not name.isidentifier() or hasattr(nn.ModuleDict, name):
            return f"returned a module named {clean(repr(name), 60)}; use an identifier that torch.nn.ModuleDict lacks"
    return ""


def _parameters(owner: object, answer: object, *_: Any) -> str:
    if not isinstance(answer, Iterable) or isinstance(answer, Tensor | Mapping):
        return f"returned {_what(answer)}; return a list of parameters, such as list(head.parameters())"
    for value in answer if isinstance(answer, Sequence) else ():
        if not isinstance(value, Tensor) or not value.is_leaf or not value.requires_grad:
            return f"returned {_what(value)} among them; return torch.nn.Parameter alone, no results of computations"
    return ""


def _calibrated(owner: object, answer: object, logits: Tensor, *_: Any) -> str:
    if isinstance(answer, Tensor) and answer.shape == logits.shape:
        return ""
    return f"returned {_what(answer)}; return logits of shape {tuple(logits.shape)}, as it was given"


def _terms(owner: object, answer: object, *_: Any) -> str:
    form = "return named scalars, such as {'pull': 0.1 * batch.features.square().mean()}"
    if isinstance(answer, Mapping) and "cross_entropy" in answer:
        return "returned 'cross_entropy', which loss adds by itself; return only the terms that are added to it"
    return _scalars(answer, f"{form}, or an empty dict")


def _scalars(answer: object, form: str) -> str:
    if not isinstance(answer, Mapping):
        return f"returned {_what(answer)}; {form}"
    for name, term in answer.items():
        if not isinstance(name, str) or not TERM.fullmatch(name):
            return f"returned a term named {clean(repr(name), 60)}; use letters, digits and ._+-, 40 of them at most"
        if not isinstance(term, Tensor) or term.numel() != 1:
            return f"returned {_what(term)} as {name!r}; {form}"
    return ""


def _loss(owner: object, answer: object, *_: Any) -> str:
    form = "return named scalars, such as {'cross_entropy': cross_entropy(logits, labels)}"
    if isinstance(answer, Mapping) and not answer:
        return f"returned {_what(answer)}; {form}"
    if wrong := _scalars(answer, form):
        return wrong
    assert isinstance(answer, Mapping)
    if is_grad_enabled() and not any(term.requires_grad for term in answer.values()):
        return (
            "returned terms without a gradient; compute them from batch.logits, batch.features or client.model, "
            "without detach, item or no_grad"
        )
    return ""


def _logits(owner: object, answer: object, inputs: Tensor, *_: Any) -> str:
    if isinstance(answer, Tensor) and answer.dim() == 2 and len(answer) == len(inputs):
        return ""
    return f"returned {_what(answer)}; return logits (B, C), here of {len(inputs)} samples"


def _finished(owner: object, answer: object, work: Any, upload: object) -> str:
    return _tensors(owner, answer) or _kept(work.client.state, "client.state") or _kept(upload, "upload")


def _step(owner: object, answer: object, round: Any) -> str:
    return _like(owner, answer, round.old) or _kept(round.shared, "round.shared") or _kept(round.memory, "round.memory")


def _data(owner: object, answer: object, *_: Any) -> str:
    if not isinstance(answer, Data):
        return f"returned {_what(answer)}; return fl_labelskew_registry.Data"
    for name, part in (("train", answer.train), ("test", answer.test)):
        if not isinstance(part, Arrays):
            return f"returned {_what(part)} as {name}; give it fl_labelskew_registry.Arrays"
        if not isinstance(part.y, np.ndarray) or part.y.ndim != 1 or part.y.dtype.kind not in "iu":
            return f"returned {_what(part.y)} as {name}.y; give it a numpy array of N whole numbers"
        if not hasattr(part.x, "shape") or len(part.x) != len(part.y):
            return f"returned {_what(part.x)} as {name}.x; give it an array (N, ...) of as many samples as y has"
    return ""


def _module(owner: object, answer: object, shape: object, classes: int) -> str:
    if not isinstance(answer, nn.Module):
        return f"returned {_what(answer)}; return a torch.nn.Module"
    if not callable(getattr(answer, "features", None)):
        return "returned a module without features; give it features(x), which returns (B, d)"
    classifier = getattr(answer, "classifier", None)
    if not isinstance(classifier, nn.Linear):
        has = "without classifier" if classifier is None else f"whose classifier is {_what(classifier)}"
        return f"returned a module {has}; give it a classifier, torch.nn.Linear(d, {classes})"
    if classifier.out_features != classes:
        return f"returned a module of {classifier.out_features} classes; give its classifier {classes}, one a class"
    return ""


def _features(owner: Any, answer: object, inputs: Tensor) -> str:
    shape = (len(inputs), owner.classifier.in_features)
    if isinstance(answer, Tensor) and answer.shape == shape:
        return ""
    return f"returned {_what(answer)}; return features (B, d), here {shape}"


CHECKS: dict[type, dict[str, Callable[..., str]]] = {
    Method: {
        "deviations": _sentences,
        "warnings": _sentences,
        "report": _facts,
        "logits_only": _bool,
        "additive": _bool,
        "protects": _bool,
        "personalises": _bool,
        "opening_shapes": _shapes,
        "contribution_shapes": _shapes,
        "opening": _sent("opening_shapes"),
        "open": _tensors,
        "shared_modules": _modules,
        "stages": _stages,
        "before_round": _after_client,
        "private_parameters": _parameters,
        "calibrate": _calibrated,
        "terms": _terms,
        "loss": _loss,
        "contribute": _sent("contribution_shapes"),
        "protect": _like,
        "combine": _tensors,
        "after_aggregation": _like,
        "after_round": _after_client,
        "private_logits": _logits,
        "personalised": _tensors_or_none,
    },
    Optimizer: {
        "deviations": _sentences,
        "contribution_shapes": _shapes,
        "before_round": lambda owner, answer, work: _kept(work.client.state, "client.state"),
        "finish": _finished,
        "step": _step,
    },
    Partitioner: {},  # partition.clients checks what it returns
    Dataset: {
        "load": _data,
        "load_all": _data,
        "load_test": _data,
        "splits_off": _bool,
        "survey": _rows,
        "broken": _sentences,
    },
    Network: {"build": _module},
    nn.Module: {"features": _features, "forward": _logits},
}
"""What the answers of a contract's hooks have to pass; those of the others are not looked at."""
