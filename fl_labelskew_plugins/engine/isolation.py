"""Isolation of clients that share a network and plugins in one process.

Over MPI and across silos, a hook that changes a shared object would affect only the later clients of its process, and
the runtimes would give different numbers. So changes of the network are undone after each turn, and changed attributes
of a plugin end the run.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Method, Optimizer
from fl_labelskew_registry.plugin import Plugin
from torch import Tensor, nn

from fl_labelskew_plugins.checked import Hook, HookError, hook_name, package
from fl_labelskew_plugins.machine.text import few
from fl_labelskew_plugins.methods.combined import Combined

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
"""Hooks of the server."""


class Baseline:
    """State of a network; :meth:`restore` undoes later changes of all except weights and saved buffers.

    The state comprises modules' structure, attributes, modes and hooks, parameters' ``requires_grad`` and hooks, and
    non-persistent buffers. Weights and persistent buffers are loaded at each turn's start; only their shape and dtype
    are restored.
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
            for name, (value, content) in attributes.items():
                if content is not None:
                    _refill(value, _current(value, content) if name == "_buffers" else content)
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
    """Buffers by their earlier names; of those with equal form, the current ones, which may be on another device."""

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
    return {name: _token(value, packages, set()) for name, value in {**of_classes, **vars(part)}.items()}


class _Same:
    """Equal only for the same object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


class _Tensor(_Same):
    """Equal for the same tensor without in-place changes, or a tensor with the same values."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__(value)
        self.version = self._version

    @property
    def _version(self) -> int:
        return 0 if self.value.is_inference() else self.value._version

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Tensor):
            return False
        if self.value is other.value:
            return self.version == other.version
        a, b = self.value, other.value
        alike = a.shape == b.shape and a.dtype == b.dtype and self.version == self._version
        return alike and torch.equal(a.detach().cpu(), b.detach().cpu())

    __hash__ = None


STATES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((type(None), bool, int, str, bytes), lambda value: (type(value), value)),
    ((float, complex, np.generic, itertools.count), lambda value: (type(value), repr(value))),  # NaN differs from NaN
    (Tensor, _Tensor),
    (np.ndarray, lambda value: (value.shape, str(value.dtype), hash(value.tobytes()))),
    (random.Random, lambda value: hash(value.getstate())),
    (torch.Generator, lambda value: value.get_state().numpy().tobytes()),
    (np.random.Generator, lambda value: repr(value.bit_generator.state)),
    (np.random.RandomState, lambda value: repr(value.get_state())),
    ((set, frozenset), frozenset),
)
"""Comparable states of values, by type."""


def _token(value: Any, packages: set[str], seen: set[int]) -> Any:
    """Comparable state of a value: its content, or the identity of objects of other ``packages``."""
    for kinds, state in STATES:
        if isinstance(value, kinds):
            return state(value)
    if id(value) in seen or isinstance(value, Hook):
        return _Same(value)
    seen.add(id(value))
    if isinstance(value, list | tuple | deque):
        return type(value), [_token(kept, packages, seen) for kept in value]
    if isinstance(value, Mapping):
        content = value
    elif isinstance(value, nn.Module) or (package(type(value)) in packages and hasattr(value, "__dict__")):
        content = vars(value)
    else:
        return _Same(value)
    return type(value), [(_token(name, packages, seen), _token(kept, packages, seen)) for name, kept in content.items()]
