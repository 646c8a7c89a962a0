"""What an import may cost: listing and validating recipes loads these modules."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CODE = """
import importlib, sys
for name in sys.argv[1].split():
    importlib.import_module(name)
print(*sorted({name.split(".")[0] for name in sys.modules} & {"torch", "torchvision", "sklearn", "PIL", "fedml"}))
"""


@pytest.mark.parametrize(("package", "heavy"), [("partition", set()), ("data", set()), ("models", {"torch"})], ids=str)
def test_imports_are_light(package, heavy):
    root = f"fl_labelskew_plugins.{package}"
    folder = Path(find_spec(root).origin).parent
    names = " ".join(f"{root}.{path.stem}" for path in folder.glob("*.py") if path.stem not in ("__init__", "given"))
    done = subprocess.run([sys.executable, "-c", CODE, names], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == heavy
