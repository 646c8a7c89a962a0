from pathlib import Path

import pytest
from commands import call, errors

from fl_labelskew_plugins.cli import examples
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.studies.sweep import plan

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("here")


def test_every_example_is_listed():
    there = {path.name for path in (ROOT / "examples").iterdir()}
    there |= {f"sweeps/{path.stem}" for path in (ROOT / "sweeps").glob("*.yaml")}
    assert examples.ABOUT.keys() == there
    listed = call("examples", "ls").output
    assert all(f"\n{name} " in listed for name in there)


def test_a_copy_is_complete_except_for_generated_files(here, tmp_path_factory, monkeypatch):
    shipped = tmp_path_factory.mktemp("package")
    for file in ("README.md", "certs/ca.key", "data/x.npz", "__pycache__/a.pyc"):
        (shipped / "hospitals" / file).parent.mkdir(parents=True, exist_ok=True)
        (shipped / "hospitals" / file).write_text(file)
    monkeypatch.setattr(examples.shipped, "folder", lambda kind: shipped)
    assert call("examples", "cp", "hospitals/").output == "hospitals\n"
    assert [path.name for path in (here / "hospitals").iterdir()] == ["README.md"]


@pytest.mark.parametrize("name", examples.ABOUT)
def test_every_example_can_be_copied(here, name):
    target = here / Path(call("examples", "cp", name).output.strip())
    assert target.exists()
    assert name != "hospitals" or (target / ".gitignore").read_text() == "certs/\ndata/\n"
    if name == "sweeps/digits":
        assert len(plan.plan(target, ["train_args.comm_round=1"])) == 16  # its base is there wherever it lies


def test_no_file_is_overwritten(here):
    (here / "services").write_text("mine")
    assert errors("examples", "cp", "services") == ["services: exists already; use another DEST"]
    assert errors("recipes", "cp", "quickstart", "services") == ["services: exists already; use another DEST"]
    call("examples", "cp", "services", "other")
    assert (here / "other" / "compose.yaml").is_file()
    line = "no/where: cannot be written: No such file or directory"
    assert errors("examples", "cp", "first_run.ipynb", "no/where") == [line]
    (line,) = errors("examples", "cp", "hospital")
    assert line.endswith("; did you mean hospitals?")


def test_a_missing_recipe_path_says_how_to_copy_the_recipe(capsys):
    assert parse.load("recipes/mpi_digits.yaml").name == "mpi_digits"
    parse.load("recipes/mpi_digits.yaml")
    warned = (
        "warning: recipes/mpi_digits.yaml does not exist; using the package's recipe mpi_digits "
        "(to copy it: labelskew recipes cp mpi_digits)\n"
    )
    assert capsys.readouterr().err == warned
    (line,) = errors("validate", "mine/quickstart.yaml")
    end = "; the package has a recipe quickstart: use only its name, or copy it: labelskew recipes cp quickstart"
    assert line.endswith(end)
