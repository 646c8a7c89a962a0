"""What all plugins have in common, whatever they implement."""

from __future__ import annotations

from typing import Any, ClassVar


class Plugin:
    """What all contracts have in common: a class's ``Params``, an object's ``params``, and which hooks are its own.

    A plugin that recipes name has ``Params``, empty if need be; a class whose objects stand there from Python may do
    without.
    """

    Params: ClassVar[type[Any]]

    def __init__(self, params: Any = None) -> None:
        self.params = type(self).Params() if params is None and hasattr(type(self), "Params") else params

    def uses(self, *hooks: str) -> bool:
        """Whether any of these hooks is the plugin's own, in place of the contract's neutral one."""
        kind = type(self)
        contract = next(base for base in kind.__mro__ if Plugin in base.__bases__)
        return any(getattr(kind, hook) is not getattr(contract, hook) for hook in hooks)


def hooks(contract: type[Plugin]) -> tuple[str, ...]:
    """Names of a contract's hooks: of all its public functions, in their order."""
    return tuple(name for name, hook in vars(contract).items() if callable(hook) and not name.startswith("_"))
