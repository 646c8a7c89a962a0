"""The two wheels, installed away from the checkout: everything a user needs is in them."""

import zipfile
from email.parser import Parser
from pathlib import Path

import fl_labelskew_registry
import pytest
from packaging.requirements import Requirement

import fl_labelskew_plugins

METHODS = ["fedavg", "fedrs", "map", "fedphp", "fedlc", "fedshift", "fedmr"]
METHODS += ["fedproc", "moon", "fedmmd", "reweighting", "fedrod", "fedaws", "fd", "flda"]


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


def test_the_wheels_hold_what_they_should(wheels):
    for wheel, package in zip(wheels, ("fl_labelskew_registry", "fl_labelskew_plugins"), strict=True):
        names, metadata = contents(wheel)
        assert f"{package}/py.typed" in names
        assert any(name.endswith("licenses/LICENSE") for name in names)
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert len(metadata.get_payload()) > 20
    assert "fl_labelskew_fedml_run.pth" in names
    assert {f"fl_labelskew_plugins/studies/page.{kind}" for kind in ("html.j2", "css", "js")} <= set(names)
    recipes = {name.partition("/recipes/")[2] for name in names}
    assert {
        "quickstart.yaml",
        *(f"papers/{paper}.yaml" for paper in ("fedrs", "map", "fedlc", "fedshift", "fedmr")),
    } <= recipes
    assert not [name for name in names if name.split("/")[0] in {"tests", "recipes", "benchmarks", "registry", "docs"}]


def test_the_registry_needs_stevedore_alone(wheels):
    _, metadata = contents(wheels[0])
    assert metadata.get_all("Requires-Dist") == ["stevedore>=5.2"]


def test_a_version_is_written_in_one_place(wheels):
    """The package says it; the wheel, the changelog and what the plugins ask of the registry follow."""
    packages = {"registry": fl_labelskew_registry, ".": fl_labelskew_plugins}
    root = Path(__file__).parents[1]
    for (folder, package), wheel in zip(packages.items(), wheels, strict=True):
        assert contents(wheel)[1]["Version"] == package.__version__
        assert "\nversion =" not in (root / folder / "pyproject.toml").read_text()
    assert f"\n## [{fl_labelskew_plugins.__version__}]" in (root / "CHANGELOG.md").read_text()
    needs = map(Requirement, contents(wheels[1])[1].get_all("Requires-Dist"))
    registry = next(need for need in needs if need.name == "fl-labelskew-registry")
    assert registry.specifier.contains(fl_labelskew_registry.__version__)


def test_the_code_comes_from_the_wheels(venv):
    source = "import fl_labelskew_plugins as p, fl_labelskew_registry as r; print(p.__file__); print(r.__file__)"
    for line in venv.run("python", "-c", source).stdout.splitlines():
        assert line.startswith(str(venv.site)), line


def test_all_methods_are_listed(venv):
    lines = [line.split() for line in venv.run("labelskew", "methods").stdout.splitlines()]
    assert {*METHODS} <= {line[0] for line in lines if len(line) > 1}


def test_a_recipe_can_be_copied_out_checked_and_tried(venv, tmp_path):
    venv.run("labelskew", "recipes", "cp", "quickstart", cwd=tmp_path)
    assert (tmp_path / "quickstart.yaml").is_file()
    assert venv.run("labelskew", "validate", "quickstart.yaml", cwd=tmp_path).stdout == "quickstart.yaml: ok\n"
    assert "fedrs" in venv.run("fedml", "run", "quickstart.yaml", "--dry-run", cwd=tmp_path).stdout
    row = venv.run("fedml", "run", "fedlc/table4_synthetic_0_0", "--dry-run", cwd=tmp_path)
    assert "table4_synthetic_0_0: fedlc with FedAvg" in row.stdout


def test_the_host_s_own_command_line_still_answers(venv):
    done = venv.run("fedml", "run", "--help")
    assert "Manage runs" in done.stdout
    assert "fedml run RECIPE.yaml" in done.stdout


def test_a_recipe_that_is_missing_is_one_line(venv):
    done = venv.run("fedml", "run", "none.yaml", check=False)
    assert done.returncode == 2
    assert [line.partition("Z ")[2] for line in done.stderr.splitlines() if " ERROR " in line] == [
        "ERROR   none.yaml: cannot be read: No such file or directory"
    ]
    assert "Traceback" not in done.stderr
