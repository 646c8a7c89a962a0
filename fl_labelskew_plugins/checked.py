"""Plugins of other packages as runs call them: a wrong answer or an exception of a hook is one line.

:func:`checked` puts a :class:`Hook` in front of every hook of such a plugin; what an answer must be is
``fl_labelskew_registry.answers``'s to say. This package's own plugins are called as they are, and keep their whole
traceback.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from fl_labelskew_registry import HOOKS, LabelSkewError, Method
from fl_labelskew_registry.answers import problem
from torch import Tensor, float32, float64, int64, nn

from fl_labelskew_plugins.machine.text import clean

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
        contract = next((contract for contract in HOOKS if isinstance(plugin, contract)), nn.Module)
        for name in HOOKS.get(contract, ("features", "forward")):  # type: ignore[arg-type]
            vars(plugin)[name] = Hook(plugin, contract, name, kind, vars(plugin).get(name))
    return plugin


class Hook:
    """A hook of a plugin, checked.

    ``kind``: the class whose author's it is; ``given``: what the object has in place of its class's function.
    """

    def __init__(
        self, owner: Any, contract: type, name: str, kind: type, given: Callable[..., Any] | None = None
    ) -> None:
        self.owner, self.contract, self.name, self.kind, self.given = owner, contract, name, kind, given

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy of the plugin has hooks of its own
        return Hook, (self.owner, self.contract, self.name, self.kind, self.given)

    def __call__(self, *args: Any, **more: Any) -> Any:
        """What the hook returns.

        Raises:
            HookError: it is not what the contract says, or the author's code raised something.
        """
        function = self.given
        if function is None:  # a network's features may be a module in it
            hook = getattr(type(self.owner), self.name, None)
            function = self.owner._modules[self.name] if hook is None else hook.__get__(self.owner)
        where = f"{type(self.owner).__qualname__}.{self.name} ({self.kind.__module__})"
        try:
            answer = function(*args, **more)
        except LabelSkewError:
            raise
        except Exception as error:
            if frames := _frames(error, self.kind):
                raise HookError(f"{where} raised {_said(error)}", frames) from error
            raise
        if wrong := problem(self.owner, self.contract, self.name, answer, *args):
            raise HookError(f"{where} {wrong}")
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
