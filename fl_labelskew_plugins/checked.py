"""Turn errors and invalid values of other packages' plugins into one-line error messages."""

import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fl_labelskew_registry import HOOKS, LabelSkewError, Method
from fl_labelskew_registry.answers import problem
from torch import Tensor, float32, float64, int64, nn

from fl_labelskew_plugins.machine.text import clean

T = TypeVar("T")

OURS = {"fl_labelskew_plugins", "fl_labelskew_registry"}
OTHERS = {"torch", "fedml", *OURS, *sys.stdlib_module_names}
"""Packages with frames that never belong to a plugin's author."""
SENT = (float32, float64, int64)  # types of tensors that leave a client


class HookError(LabelSkewError):
    """A plugin's hook failed or returned an invalid value."""

    exit_code = 1

    def __init__(self, line: str, frames: str = "") -> None:
        super().__init__(line)
        self.frames = frames


def checked(plugin: T, *, of: object = None) -> T:
    """Wrap every hook of another package's plugin in a :class:`Hook`; ``of``: the creator of a network's module."""
    kind = type(plugin if of is None else of)
    if package(kind) not in OURS:
        contract = next((contract for contract in HOOKS if isinstance(plugin, contract)), nn.Module)
        for name in HOOKS.get(contract, ("features", "forward")):  # type: ignore[arg-type]
            vars(plugin)[name] = Hook(plugin, contract, name, kind, vars(plugin).get(name))
    return plugin


@dataclass(eq=False)
class Hook:
    """A checked hook of a plugin; ``kind``: its author's class; ``given``: the object's own function, if any."""

    owner: Any
    contract: type
    name: str
    kind: type
    given: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The hook's value; raises HookError if it is invalid, or the author's code fails."""
        function = self.given
        if function is None:  # features may be a submodule of the network
            hook = getattr(type(self.owner), self.name, None)
            function = self.owner._modules[self.name] if hook is None else hook.__get__(self.owner)
        where = f"{type(self.owner).__qualname__}.{self.name} ({self.kind.__module__})"
        try:
            answer = function(*args, **kwargs)
        except LabelSkewError:
            raise
        except Exception as error:
            if frames := _frames(error, self.kind):
                raise HookError(f"{where} raised {_summary(error)}", frames) from error
            raise
        if violation := problem(self.owner, self.contract, self.name, answer, *args):
            raise HookError(f"{where} {violation}")
        return answer


def hook_name(plugin: Any, *hooks: str) -> str:
    """Overridden hooks as ``Class.hook (module)``, of each part of a combined method."""
    names = []
    for part in getattr(plugin, "parts", {"": plugin}).values():
        kind = type(part)
        if used := " or ".join(hook for hook in hooks if part.uses(hook)):
            names.append(f"{kind.__qualname__}.{used} ({kind.__module__})")
    return " or ".join(names) or type(plugin).__qualname__


def backward(total: Tensor, method: Method) -> None:
    """Compute a loss's gradients; raises HookError if that fails in another package's loss."""
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
            f"{hook_name(part, hook)}: its gradient raised {_summary(error)}", _frames(error, type(part))
        ) from error


def package(kind: type) -> str:
    """Top-level package of a class's module."""
    return kind.__module__.partition(".")[0]


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {clean(' '.join(str(error).split()), 300)}".removesuffix(": ")


def _frames(error: Exception, kind: type) -> str:
    authors = {package(base) for base in kind.__mro__} - OTHERS
    library = sysconfig.get_path("stdlib")

    def is_own(frame: Any) -> bool:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        # other installed packages are not the author's
        installed = file.startswith(("<", library)) or "site-packages" in file or "dist-packages" in file
        return top in authors or not (top in OTHERS or installed)

    authors_frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_own(frame)]
    return "".join(traceback.StackSummary.extract(iter(authors_frames)).format()).rstrip()
