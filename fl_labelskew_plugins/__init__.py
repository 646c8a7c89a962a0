"""Label-skew methods for FedML: FedRS, MAP, FedLC, FedShift, FedMR.

>>> import fl_labelskew_plugins as fl
>>> recipe = fl.load("quickstart", {"train_args.comm_round": 5})

Importing this imports nothing else; docs/python.md tells of the names below, and no other is public.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the hook is read at every interpreter start, and this before it: nothing is imported here
if TYPE_CHECKING:
    from typing import Any

    from fl_labelskew_plugins.front.run import Callback, Run, load, open, run
    from fl_labelskew_plugins.recipe.model import Recipe

__version__ = "0.1.0"

_HOMES = {
    "load": "front.run",
    "run": "front.run",
    "open": "front.run",
    "Run": "front.run",
    "Callback": "front.run",
    "Recipe": "recipe.model",
}
"""Where each public name is defined."""

__all__ = ["Callback", "Recipe", "Run", "__version__", "load", "open", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
