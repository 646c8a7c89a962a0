"""Optional packages (extras), and the commands that install them."""

import importlib
import shlex
from importlib import metadata
from typing import Any

from fl_labelskew_registry import LabelSkewError

PACKAGE = "fl-labelskew-plugins"
DISTRIBUTIONS = {"grpc": "grpcio", "Crypto": "pycryptodome", "dp_accounting": "dp-accounting"}
OPEN_MPI = "apt-get install openmpi-bin libopenmpi-dev"


def load(extra: str, *modules: str, what: str, otherwise: str = "") -> Any:
    """Import an extra's modules, and return the first; raises LabelSkewError ``WHAT needs ...OTHERWISE``."""
    for module in modules:
        name = module.partition(".")[0]
        try:
            importlib.import_module(module)
        except ImportError:
            missing = f"{what} needs {DISTRIBUTIONS.get(name, name)}, which is not installed"
            raise LabelSkewError(f"{missing}; to install it: {install(extra)}{otherwise}") from None
    return importlib.import_module(modules[0])


def install(extra: str) -> str:
    """The command that installs an extra's requirements."""
    from packaging.requirements import Requirement

    bounds: dict[str, Requirement] = {}
    for requirement in map(Requirement, metadata.requires(PACKAGE) or ()):
        marker = requirement.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            bounds.setdefault(requirement.name, requirement).specifier &= requirement.specifier
    wanted = [
        f"{name}[{','.join(sorted(r.extras))}]{r.specifier}" if r.extras else f"{name}{r.specifier}"
        for name, r in sorted(bounds.items())
    ]
    return shlex.join(["pip", "install", *wanted])
