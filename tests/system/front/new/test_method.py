"""The package of a method of one's own: it is built and installed, and its tests pass."""

import pytest
from commands import call, errors

FILES = {"README.md", "labelskew_my_loss.py", "my_loss_digits.yaml", "pyproject.toml", "test_my_loss.py"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_method_is_the_example_under_a_new_name(here):
    assert "labelskew-my_loss: README.md" in call("new", "method", "my_loss").output
    folder = here / "labelskew-my_loss"
    assert {path.name for path in folder.iterdir()} == FILES
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "ldam" not in text.lower()
    assert "../" not in text  # no link to what is not there
    assert "class MyLoss(Method)" in text
    assert errors("new", "method", "my_loss") == ["labelskew-my_loss: is not empty; use a new or empty folder"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fedlc", "method fedlc: is installed already, by fl-labelskew-plugins; use another name"),
        ("My-Loss", "must start with a lowercase letter and contain only lowercase letters, digits and _"),
        ("a\x1bb", "method a?b: must start with a lowercase"),
        ("batch", "method batch: its class would be Batch, a name that its code needs; use another name"),
    ],
)
def test_an_invalid_name_is_one_line(here, name, says):
    (line,) = errors("new", "method", name)
    assert says in line
    assert not [*here.iterdir()]


def test_package_is_installed_and_its_tests_pass(here, make_venv, wheels, build):
    call("new", "method", "my_method", "mine")
    venv = make_venv()
    venv.install(*wheels, build(here / "mine", here / "dist"))
    venv.add_dependencies()
    assert "margin" in venv.run("labelskew", "methods", "my_method").stdout
    options = ("-q", "-p", "no:cacheprovider", "-k", "not every_runtime")  # which test_third_party.py runs
    tests = venv.run("python", "-m", "pytest", *options, "mine/test_my_method.py", cwd=here)
    assert "FAILED" not in tests.stdout
    assert "passed" in tests.stdout
    venv.run("labelskew", "validate", "my_method_digits.yaml", cwd=here / "mine")
    again = venv.run("labelskew", "new", "method", "my_method", "other", check=False)
    assert "error: method my_method: is installed already, by labelskew-my_method; use another name" in again.stderr
