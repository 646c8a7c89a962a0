"""Isolation of clients that share a network and plugins in one process.

A changed object would affect only the later clients of this process, and the runtimes would give different numbers. So
changes of the network are undone after each turn, and changed attributes of a plugin end the run.
"""

import inspect
import itertools
import pickle
import random
from collections import deque
from collections.abc import Mapping
from functools import cache, cached_property
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import torch
from fl_labelskew_registry import Method, Optimizer
from fl_labelskew_registry.plugin import Plugin
from torch import Tensor, nn

from fl_labelskew_plugins.checked import Hook, HookError, hook_name, package
from fl_labelskew_plugins.machine.text import few
from fl_labelskew_plugins.methods.combined import Combined
from fl_labelskew_plugins.tensors import content

WITHOUT_CLIENT = (
    "deviations",
    "warnings",
    "report",
    "logits_only",
    "additive",
    "protects",
    "personalises",
    "opening_shapes",
    "contribution_shapes",
    "shared_modules",
    "stages",
    "personalised",
)
"""Hooks without a client, which may be called at any time."""
ON_SERVER = ("open", "combine", "after_aggregation", "step")


class Baseline:
    """State of a network; :meth:`restore` undoes later changes.

    Of weights and persistent buffers, which are loaded at each turn's start, only shape and dtype are restored.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._modules = [
            (module, type(module), {name: (value, _content(value)) for name, value in vars(module).items()})
            for module in model.modules()
        ]
        self._parameters = [
            (p, p.requires_grad, dict(vars(p)), _content(p._backward_hooks), _content(p._post_accumulate_grad_hooks))
            for p in model.parameters()
        ]
        self._forms = [(tensor, tensor.detach().to("meta")) for tensor in (*model.parameters(), *model.buffers())]
        self._buffers = [
            (module._buffers, name, value.clone())
            for module in model.modules()
            for name, value in module._buffers.items()
            if value is not None and name in module._non_persistent_buffers_set
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the state."""
        for tensor, form in self._forms:
            _reform(tensor, form)
        for module, kind, attributes in self._modules:
            now = vars(module)
            if type(module) is not kind:  # parametrisations replace the class
                module.__class__ = kind
            for name in [name for name in now if name not in attributes]:
                del now[name]
            for name, (value, inner) in attributes.items():
                if inner is not None:
                    _refill(value, _current(value, inner) if name == "_buffers" else inner)
                now[name] = value
        for p, trained, attributes, hooks, accumulated in self._parameters:
            p.grad = None
            if p.requires_grad != trained:
                p.requires_grad_(trained)
            if vars(p) or attributes:
                _refill(vars(p), attributes)
            for registered, kept in ((p._backward_hooks, hooks), (p._post_accumulate_grad_hooks, accumulated)):
                if registered:
                    _refill(registered, kept or {})
        for buffers, name, values in self._buffers:
            buffer = buffers[name]
            assert buffer is not None
            buffer.copy_(values)


def _content(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | set | list) else None


def _refill(container: Any, content: Any) -> None:
    container.clear()
    container.extend(content) if isinstance(container, list) else container.update(content)


def _reform(tensor: Tensor, form: Tensor) -> None:
    if tensor.shape != form.shape or tensor.dtype != form.dtype:
        tensor.grad = None
        tensor.data = torch.zeros_like(form, device=tensor.device)


def _current(now: Mapping[str, Tensor | None], before: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Buffers by their earlier names; of equal form, the current ones, which may be on another device."""

    def same(name: str, old: Tensor | None) -> bool:
        new = now.get(name)
        return new is not None and old is not None and new.shape == old.shape and new.dtype == old.dtype

    return {name: now[name] if same(name, old) else old for name, old in before.items()}


class Unchanged:
    """Check that a plugin's attributes do not change, except for values of ``functools.cached_property``."""

    def __init__(self, plugin: Method | Optimizer) -> None:
        self._parts: list[Plugin] = list(plugin.parts.values()) if isinstance(plugin, Combined) else [plugin]
        self._before = [_attributes(part) for part in self._parts]
        self._used = cache(lambda part, hooks: [hook for hook in hooks if hasattr(part, hook) and part.uses(hook)])

    def check(self, *hooks: str) -> None:
        """Raise HookError if an attribute changed in a call of ``hooks``; free if the plugin defines none of them."""
        for number, part in enumerate(self._parts):
            if not (used := self._used(part, hooks)):
                continue
            now, before = _attributes(part), self._before[number]
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            new = {name for name in changed if name not in before}
            cached = {n for n in new if isinstance(inspect.getattr_static(type(part), n, None), cached_property)}
            if others := [name for name in changed if name not in cached]:
                names = few([f"self.{name}" for name in others], 3)
                raise HookError(
                    f"{hook_name(part, *used)} changed {names}; all clients of a process share this object, and other "
                    f"processes have their own copy; {_remedy(part, used)}"
                )
            self._before[number] = now


def _remedy(part: Plugin, hooks: list[str]) -> str:
    optimizer = isinstance(part, Optimizer)
    if all(hook in ON_SERVER for hook in hooks):
        place = "round.memory or round.shared" if optimizer else "the tensors that open and combine return"
        return f"keep the value in {place}"
    if all(hook in WITHOUT_CLIENT for hook in hooks):
        return "compute the value in __init__ or a functools.cached_property"
    view = "work.client" if optimizer else "client"
    return f"keep the value in {view}.state (for later rounds) or {view}.scratch (for the rest of this round)"


def _attributes(part: Plugin) -> dict[str, Any]:
    packages = {package(base) for base in type(part).__mro__} - {"builtins"}
    of_classes = {
        name: value
        for base in reversed(type(part).__mro__)
        if base not in (object, Plugin) and Plugin not in base.__bases__
        for name, value in vars(base).items()
        if not (name.startswith("__") or isinstance(value, type) or hasattr(type(value), "__get__"))
    }
    return {name: _state(value, packages) for name, value in {**of_classes, **vars(part)}.items()}


CONTENT = (
    *(type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque, itertools.count),
    *(Tensor, nn.Module, torch.Generator, np.ndarray, np.generic, random.Random),
    *(np.random.Generator, np.random.BitGenerator, np.random.RandomState),
)
"""Types of values that are compared by content."""


class _Pickler(pickle.Pickler):
    """Pickles values for comparison; all objects of other ``packages`` by identity."""

    def __init__(self, file: BinaryIO, packages: set[str]) -> None:
        super().__init__(file)
        self._packages = packages

    def persistent_id(self, value: Any) -> int | None:
        own = package(type(value)) in self._packages and not isinstance(value, Hook)
        return None if own or isinstance(value, CONTENT) else id(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return tuple, (tuple(value.shape), str(value.dtype), bytes(content(value)))
        if isinstance(value, torch.Generator):
            return bytes, (bytes(content(value.get_state())),)
        return (str, (repr(value),)) if isinstance(value, itertools.count) else NotImplemented


def _state(value: Any, packages: set[str]) -> bytes | int:
    file = BytesIO()
    try:
        _Pickler(file, packages).dump(value)
    except Exception:  # an object that refuses to be pickled
        return id(value)
    return file.getvalue()
