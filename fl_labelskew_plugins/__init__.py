"""Label-skew methods for FedML: FedRS, MAP, FedLC, FedShift, FedMR.

>>> import fl_labelskew_plugins as fl
>>> recipe = fl.load("quickstart", {"train_args.comm_round": 5})

The public names are those of docs/python.md. Every start of the interpreter imports this module, so it imports nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fl_labelskew_plugins.front.local_loss import LocalLoss, local_loss
    from fl_labelskew_plugins.front.run import Callback, Loop, Run, load, load_run, run, simulate, survey
    from fl_labelskew_plugins.host import runner
    from fl_labelskew_plugins.recipe.model import Recipe
    from fl_labelskew_plugins.studies.printed import Report, report
    from fl_labelskew_plugins.studies.sweep.from_python import Sweep, sweep

    fedml = runner

__version__ = "0.1.0"

_MODULES = {
    **dict.fromkeys(("load", "run", "load_run", "Run", "Callback", "simulate", "Loop", "survey"), "front.run"),
    **dict.fromkeys(("local_loss", "LocalLoss"), "front.local_loss"),
    **dict.fromkeys(("report", "Report"), "studies.printed"),
    **dict.fromkeys(("sweep", "Sweep"), "studies.sweep.from_python"),
    "Recipe": "recipe.model",
}

__all__ = [
    "Callback",
    "LocalLoss",
    "Loop",
    "Recipe",
    "Report",
    "Run",
    "Sweep",
    "__version__",
    "load",
    "load_run",
    "local_loss",
    "report",
    "run",
    "simulate",
    "survey",
    "sweep",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "fedml":
        from fl_labelskew_registry import LabelSkewError

        from fl_labelskew_plugins.recipe import compatibility

        if not compatibility.host_installed():
            raise LabelSkewError("fl.fedml: FedML is not installed; use Python 3.10 or 3.11, or labelskew run")
        return import_module(f"{__name__}.host.runner")
    if name == "open":
        import warnings

        warnings.warn("fl.open is now fl.load_run", DeprecationWarning, stacklevel=2)
        name = "load_run"
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "fedml"])
