"""What an import may cost: listing and validating recipes loads these modules."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
for name in ("partition", "data", "models"):
    package = importlib.import_module(f"fl_labelskew_plugins.{name}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(".given"):
            importlib.import_module(module.name)
    print(*sorted({name.split(".")[0] for name in sys.modules} & {"torch", "torchvision", "sklearn", "PIL", "fedml"}))
"""


def test_imports_are_light():
    """The packages are imported in this order in one process."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "", "torch"]
