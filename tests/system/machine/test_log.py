import json
import re
import sys

import pytest
from commands import call
from error_messages import message

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.runtimes.processes import together

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
CHILD = """
import sys
from pathlib import Path
from fl_labelskew_plugins.machine import log
log.begin()
log.note("  a table's row")
log.warn("w")
log.error("error: e")
print("Traceback (most recent call last):", file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def begin(monkeypatch):
    """Begin as a process with this variable."""

    def start(value=None):
        monkeypatch.delenv(log.FORM) if value is None else monkeypatch.setenv(log.FORM, value)
        log.begin()

    yield start
    log.end()


def print_line():
    log.note("one\ntwo")
    log.note("odd", log.WARNING)
    log.warn("w")
    log.error("error: a\nerror: b")


def test_log_lines_in_a_pipe_have_time_and_level(begin, capsys):
    begin()
    print_line()
    out, err = capsys.readouterr()
    assert (out.count("\n"), err.count("\n")) == (3, 3)
    lines = [re.fullmatch(f"{TIME} (.*)", line)[1] for line in (out + err).splitlines()]
    assert lines == ["INFO    one", "INFO    two", "WARNING odd", "WARNING w", "ERROR   a", "ERROR   b"]


def test_json(begin, capsys):
    begin("json")
    print_line()
    lines = [json.loads(line) for text in capsys.readouterr() for line in text.splitlines()]
    assert all(re.fullmatch(TIME, line.pop("time")) for line in lines)
    assert lines[2:4] == [{"level": "WARNING", "message": "odd"}, {"level": "WARNING", "message": "w"}]
    assert lines[-1] == {"level": "ERROR", "message": "b"}


@pytest.mark.parametrize("form", ["plain", None])
def test_plain_lines_equal_those_of_a_terminal(form, begin, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    begin(form)
    print_line()
    assert capsys.readouterr() == ("one\ntwo\nodd\n", "warning: w\nerror: a\nerror: b\n")


def test_an_unknown_log_format_is_an_error(begin):
    assert message(lambda: begin("xml")) == "FL_LABELSKEW_LOG=xml: allowed: plain, text, json"


def test_recipe_errors_of_run_have_time_and_level(monkeypatch, tmp_path):
    monkeypatch.setenv(log.FORM, "text")
    run = call("run", tmp_path / "none.yaml", code=2)
    assert re.fullmatch(f"{TIME} ERROR   .*none.yaml: cannot be read: No such file or directory\n", run.stderr)
    other = call("validate", tmp_path / "none.yaml", code=2)
    assert other.stderr == f"error: {tmp_path}/none.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("form", ["plain", "text", "json"])
def test_forwarded_lines_have_one_time(form, begin, capfd):
    begin(form)
    together({"silo 1": [sys.executable, "-c", CHILD]}, environment={log.FORM: form})
    out, err = capfd.readouterr()
    expected = [("INFO", "  a table's row"), ("WARNING", "w"), ("ERROR", "e")]
    expected.append(("WARNING", "Traceback (most recent call last):"))
    lines = [*out.splitlines(), *err.splitlines()]
    if form == "json":
        last = ("WARNING", "silo 1 | Traceback (most recent call last):")  # it had no form
        records = [json.loads(line) for line in lines]
        assert [(line["level"], line["message"]) for line in records] == [*expected[:3], last]
        assert [line.get("part") for line in records] == ["silo 1"] * 3 + [None]
    elif form == "text":
        wanted = [f"{level:<7} silo 1 | {text}" for level, text in expected]
        assert [re.fullmatch(f"{TIME} (.*)", line)[1] for line in lines] == wanted
    else:
        texts = ["  a table's row", "warning: w", "error: e", "Traceback (most recent call last):"]
        assert lines == [f"silo 1 | {text}" for text in texts]
