"""The package of a method of one's own: it is built, and its tests pass."""

import re
from pathlib import Path

import pytest
from commands import call, errors

PYTEST = Path(pytest.__file__).with_name("__main__.py")


def test_the_method_is_the_example_under_a_new_name(here):
    assert "labelskew-my_loss: README.md" in call("new", "method", "my_loss").output
    folder = here / "labelskew-my_loss"
    files = {"README.md", "labelskew_my_loss.py", "my_loss_digits.yaml", "pyproject.toml", "test_my_loss.py"}
    assert {path.name for path in folder.iterdir()} == files
    text = "".join(path.read_text() for path in folder.iterdir())
    assert not re.search("not_?true", text.lower().replace("not-true", ""))
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


def test_package_is_built_and_its_tests_pass(here, build, forker):
    """With its wheel in Python's path; test_third_party.py installs the example that it is made from.

    All tests but one: tests/system/studies/test_check.py runs a method in every runtime.
    """
    call("new", "method", "my_method", "mine")
    environment = {"PYTHONPATH": str(build(here / "mine", here / "dist"))}
    words = ["-q", "-p", "no:cacheprovider", "-k", "not every_runtime", "mine"]
    process = forker.start(words, here / "log", script=PYTEST, cwd=here, environment=environment)
    assert process.wait() == 0, process.text
    assert " passed" in process.text
