"""Base class of all plugins."""

from typing import Any, ClassVar


class Plugin:
    """Base of all contracts; plugins for recipes need ``Params``, possibly empty."""

    Params: ClassVar[type[Any]]

    def __init__(self, params: Any = None) -> None:
        self.params = type(self).Params() if params is None and hasattr(type(self), "Params") else params

    def uses(self, *hooks: str) -> bool:
        """Whether the plugin overrides any of these hooks."""
        kind = type(self)
        contract = next(base for base in kind.__mro__ if Plugin in base.__bases__)
        return any(getattr(kind, hook) is not getattr(contract, hook) for hook in hooks)


def hooks(contract: type[Plugin]) -> tuple[str, ...]:
    """Names of a contract's hooks: its public functions."""
    return tuple(name for name, hook in vars(contract).items() if callable(hook) and not name.startswith("_"))
