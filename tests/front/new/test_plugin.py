"""Packages of plugins of one's own: they are built and installed, and their tests pass."""

import pytest
from commands import call, errors

KINDS = ("method", "partition", "network", "dataset", "optimizer")
FILES = {"README.md", "labelskew_my_loss.py", "my_loss_digits.yaml", "pyproject.toml", "test_my_loss.py"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_the_example_under_its_own_name(here):
    assert "labelskew-my_loss: README.md" in call("new", "method", "my_loss").output
    folder = here / "labelskew-my_loss"
    assert {path.name for path in folder.iterdir()} == FILES
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "ldam" not in text.lower()
    assert "../" not in text  # no link to what is not there
    assert "class MyLoss(Method)" in text
    assert errors("new", "method", "my_loss") == ["labelskew-my_loss: is not empty; use a new or empty folder"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_other_kinds_have_the_same_files(here, kind):
    call("new", kind, "my_loss", "mine")
    assert {path.name for path in (here / "mine").iterdir()} == FILES
    assert "ldam" not in "".join(path.read_text() for path in (here / "mine").iterdir()).lower()
    assert errors("new", kind, "my_loss", "mine") == ["mine: is not empty; use a new or empty folder"]
    (line,) = errors("new", kind, "numpy_2!")
    assert line.startswith(f"{kind} numpy_2!: must start with a lowercase letter")


@pytest.mark.parametrize(
    ("kind", "name", "by"),
    [("partition", "iid", "is installed already"), ("network", "module", "a name that its code needs")],
)
def test_a_taken_name_is_refused(here, kind, name, by):
    assert by in errors("new", kind, name)[0]
    assert not [*here.iterdir()]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fedlc", "method fedlc: is installed already, by fl-labelskew-plugins; use another name"),
        ("My-Loss", "must start with a lowercase letter and contain only lowercase letters, digits and _"),
        ("a\x1bb", "method a?b: must start with a lowercase"),
        ("batch", "method batch: its class would be Batch, a name that its code needs; use another name"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_name_that_cannot_be_is_one_line(here, name, says):
    (line,) = errors("new", "method", name)
    assert says in line
    assert not [*here.iterdir()]


def test_packages_are_installed_and_their_tests_pass(here, make_venv, wheels, build):
    for kind in KINDS:
        call("new", kind, f"my_{kind}", f"mine/{kind}")
    venv = make_venv()
    venv.install(*wheels, *(build(here / "mine" / kind, here / "dist" / kind) for kind in KINDS))
    venv.add_dependencies()
    assert "margin" in venv.run("labelskew", "methods", "my_method").stdout
    folders = [f"mine/{kind}/test_my_{kind}.py" for kind in KINDS]
    options = ("-q", "-p", "no:cacheprovider", "-k", "not every_runtime")  # which test_third_party.py runs
    tests = venv.run("python", "-m", "pytest", *options, *folders, cwd=here)
    assert "FAILED" not in tests.stdout
    assert "passed" in tests.stdout
    venv.run("labelskew", "validate", "my_method_digits.yaml", cwd=here / "mine" / "method")
    again = venv.run("labelskew", "new", "network", "my_network", "other", check=False)
    assert again.stderr.endswith(
        "error: network my_network: is installed already, by labelskew-my_network; use another name\n"
    )
