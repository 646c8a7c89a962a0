"""The two wheels, installed away from the checkout: everything a user needs is in them."""

import json
import runpy
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import fl_labelskew_registry
import numpy as np
import pytest
from fl_labelskew_registry import catalog
from packaging.requirements import Requirement

import fl_labelskew_plugins
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.runtimes.options import RunOptions

ROOT = Path(__file__).parents[2]
RUN = "fedml" if find_spec("fedml") else "labelskew"
ALLOW = f"import sys\nsys.path.append({str(ROOT / 'tests' / 'helpers')!r})\nfrom only_packages import allow\n"


@pytest.fixture(scope="module")
def venv(make_venv, wheels):
    """An environment with our wheels and others' packages."""
    made = make_venv()
    made.install(*wheels)
    made.add_dependencies()
    return made


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        return names, Parser().parsestr(archive.read(metadata).decode())


def test_the_wheels_have_the_expected_files(wheels):
    for wheel, package in zip(wheels, ("fl_labelskew_registry", "fl_labelskew_plugins"), strict=True):
        names, metadata = contents(wheel)
        assert f"{package}/py.typed" in names
        assert any(name.endswith("licenses/LICENSE") for name in names)
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert len(metadata.get_payload()) > 20
    assert "fl_labelskew_fedml_run.pth" in names
    assert "fl_labelskew_plugins/studies/page.html.j2" in names
    assert "fl_labelskew_plugins/surveys/measured.json" in names
    tops = {"tests", "recipes", "examples", "sweeps", "benchmarks", "registry", "docs"}
    assert not [name for name in names if name.split("/")[0] in tops]
    folders = ("recipes", "examples", "sweeps")
    kept = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    inside = [name.removeprefix("fl_labelskew_plugins/") for name in names]
    assert {name for name in inside if name.split("/")[0] in folders} == {*kept.stdout.splitlines()}


def test_a_wheel_built_from_the_sdist_is_the_same(wheels, tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]  # the wheel from the sdist
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    records = []
    for path in (wheel, wheels[1]):
        with zipfile.ZipFile(path) as archive:
            records.append(archive.read(next(name for name in archive.namelist() if name.endswith("/RECORD"))))
    assert records[0] == records[1]  # every file and its hash


def test_a_version_is_written_in_one_place(wheels):
    """The version of the package equals that of the wheel, the changelog and the required registry."""
    packages = {"registry": fl_labelskew_registry, ".": fl_labelskew_plugins}
    for (folder, package), wheel in zip(packages.items(), wheels, strict=True):
        assert contents(wheel)[1]["Version"] == package.__version__
        assert "\nversion =" not in (ROOT / folder / "pyproject.toml").read_text()
    assert f"\n## [{fl_labelskew_plugins.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    needs = map(Requirement, contents(wheels[1])[1].get_all("Requires-Dist"))
    assert contents(wheels[0])[1].get_all("Requires-Dist") == ["stevedore>=5.2"]
    registry = next(need for need in needs if need.name == "fl-labelskew-registry")
    assert registry.specifier.contains(fl_labelskew_registry.__version__)


def test_the_code_comes_from_the_wheels(venv):
    """All methods, too."""
    source = "import fl_labelskew_plugins as p, fl_labelskew_registry as r; print(p.__file__); print(r.__file__)"
    for line in venv.run("python", "-c", source).stdout.splitlines():
        assert line.startswith(str(venv.site)), line
    lines = [line.split() for line in venv.run("labelskew", "methods").stdout.splitlines()]
    assert {entry.name for entry in catalog.entries("methods")} <= {line[0] for line in lines if len(line) > 1}


def test_recipes_examples_and_new_folders_are_written_checked_and_tried(venv, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(40, dtype=np.float32), y=np.arange(40) % 2, groups=np.arange(40) % 3)
    kinds = ("simulation", "federation")
    recipes = ["quickstart.yaml", *(f"{kind}/{kind}.yaml" for kind in kinds)]
    commands = ["recipes cp quickstart", "examples cp hospitals", "examples cp sweeps/digits", "new method mine"]
    commands += [f"new {kind} {kind} --data a.npz" for kind in kinds]
    commands += [f"validate {' '.join(recipes)}", "sweep digits.yaml --tasks"]
    commands += [f"run {recipe} --dry-run" for recipe in ("quickstart.yaml", "fedlc/table4_synthetic_0_0")]
    commands += ["run recipes/quickstart.yaml --dry-run"]
    done = venv.labelskew(*commands, cwd=tmp_path)
    assert all(f"{recipe}: ok\n" in done.stdout for recipe in recipes)
    assert "16" in done.stdout.splitlines()
    assert done.stdout.count("quickstart: fedrs with FedAvg") == 2
    assert "table4_synthetic_0_0: fedlc with FedAvg" in done.stdout
    assert done.stderr.count("(to copy it: labelskew recipes cp quickstart)") == 1
    assert not (tmp_path / "runs").exists()
    assert all((tmp_path / kind / "README.md").is_file() for kind in kinds)
    assert (tmp_path / "labelskew-mine" / "labelskew_mine.py").is_file()

    venv.run("python", "make_data.py", cwd=tmp_path / "hospitals")
    tried = venv.labelskew("run federation.yaml --role server --dry-run", cwd=tmp_path / "hospitals")
    assert "fedshift" in tried.stdout


def test_a_packaged_recipe_runs_by_its_name_from_anywhere(venv, tmp_path):
    words = ("run", "quickstart", "--set", "train_args.comm_round=1", "--run-dir", "run")
    venv.run(RUN, *words, cwd=tmp_path, FL_LABELSKEW_PICTURES="no")
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_run_without_the_host_has_identical_bytes(venv, tmp_path):
    """With only the dependencies that the wheels declare."""
    few = "train_args.comm_round=2"
    script = f"""{ALLOW}allow("fl-labelskew-plugins", without="fedml")
from fl_labelskew_plugins.cli.main import main
main(["run", "quickstart", "--set", {few!r}, "--run-dir", "wheels"])
"""
    venv.run("python", "-c", script, cwd=tmp_path)
    assert json.loads((tmp_path / "wheels" / "environment.json").read_text())["host"] == "none"
    start(RunOptions("quickstart", [few], run_dir=tmp_path / "here", quiet=True))
    for name in ("metrics.jsonl", "model.safetensors", "partition.json"):
        assert (tmp_path / "wheels" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


def test_the_packages_of_carry_suffice_for_a_run(fashion_mnist, tmp_path):
    """Only torch, torchvision and their dependencies: no FedML, SciPy, pandas or others, nor torch's compiler."""
    needed = runpy.run_path(str(ROOT / "tools" / "carry.py"))["PACKAGES"]
    script = f"""{ALLOW}allow(*{needed}, "torch", "torchvision", "safetensors", "packaging")
import fl_labelskew_plugins as fl
changes = dict([{fashion_mnist!r}.split("="), ("train_args.comm_round", 1)])
assert [line["round"] for line in fl.simulate(fl.load("small/fedmr_fmnist", changes), {str(tmp_path / "run")!r})] == [0]
assert not sys.modules.keys() & {{"fedml", "scipy", "pandas", "sklearn", "torch._dynamo", "torch._inductor", "sympy"}}
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)
