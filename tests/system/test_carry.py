"""The package of tools/carry.py is enough for a run; nothing is downloaded here."""

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARRY = runpy.run_path(str(ROOT / "tools" / "carry.py"))


def test_the_packages_suffice_for_a_run(fashion_mnist, tmp_path):
    """Only torch, torchvision and their dependencies: no FedML, SciPy, pandas or other installed packages."""
    script = f"""
import sys
sys.path.append({str(ROOT / "tests" / "helpers")!r})
import only_packages
only_packages.allow(*{CARRY["NEEDED"]}, "torch", "torchvision", "safetensors", "packaging")
import fl_labelskew_plugins as fl
changes = dict([{fashion_mnist!r}.split("="), ("train_args.comm_round", 1)])
assert [line["round"] for line in fl.simulate(fl.load("small/fedmr_fmnist", changes), {str(tmp_path / "run")!r})] == [0]
assert not sys.modules.keys() & {{"fedml", "scipy", "pandas", "sklearn"}}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
