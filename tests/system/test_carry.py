"""The package of tools/carry.py is enough for a run; nothing is downloaded here."""

import runpy
import subprocess
import sys
from pathlib import Path

CARRY = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "carry.py"))


def test_the_packages_suffice_for_a_run(fashion_mnist, tmp_path):
    """Only torch, torchvision and their dependencies: no FedML, SciPy, pandas or other installed packages."""
    script = f"""
import sys
from importlib.metadata import distribution, packages_distributions
from packaging.requirements import Requirement

allowed, todo = set(), [*{list(CARRY["NEEDED"])}, "torch", "torchvision", "safetensors", "packaging"]
while todo:
    if (name := todo.pop().lower().replace("_", "-")) not in allowed:
        allowed.add(name)
        lines = distribution(name).requires or []
        wanted = [Requirement(line) for line in lines]
        todo += [one.name for one in wanted if one.marker is None or one.marker.evaluate({{"extra": ""}})]

of = packages_distributions()

class Others:
    def find_spec(self, name, path=None, target=None):
        owners = {{owner.lower().replace("_", "-") for owner in of.get(name, ())}}
        if owners and not owners & allowed and not name.startswith("fl_labelskew"):
            raise ModuleNotFoundError(f"{{name}} is not carried", name=name)

sys.meta_path.insert(0, Others())
import fl_labelskew_plugins as fl
changes = dict([{fashion_mnist!r}.split("="), ("train_args.comm_round", 1)])
assert [line["round"] for line in fl.simulate(fl.load("small/fedmr_fmnist", changes), {str(tmp_path / "run")!r})] == [0]
print(*sorted(allowed))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
