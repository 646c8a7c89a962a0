"""What an import may cost: listing and validating recipes loads these modules."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

CODE = """
import importlib, sys
for names in sys.argv[1:]:
    for name in names.split():
        importlib.import_module(name)
    print(*sorted({name.split(".")[0] for name in sys.modules} & {"torch", "torchvision", "sklearn", "PIL", "fedml"}))
"""


def modules(package):
    root = f"fl_labelskew_plugins.{package}"
    folder = Path(find_spec(root).origin).parent
    return " ".join(f"{root}.{path.stem}" for path in folder.glob("*.py") if path.stem not in ("__init__", "given"))


def test_imports_are_light():
    """The packages are imported in this order in one process."""
    packages = map(modules, ("partition", "data", "models"))
    done = subprocess.run([sys.executable, "-c", CODE, *packages], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "", "torch"]
