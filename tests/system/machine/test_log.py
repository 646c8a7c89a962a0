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
from fl_labelskew_plugins.machine import log
log.begin()
log.note("  a table's row\\ntwo")
log.note("odd", log.WARNING)
log.warn("w")
log.error("error: a\\nerror: b")
print("Traceback (most recent call last):", file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def begin(monkeypatch):
    """Begin as a process with this variable."""

    def start(value=""):
        monkeypatch.setenv(log.FORM, value)
        log.begin()

    yield start
    log.end()


def test_the_default_format_depends_on_the_output(begin, monkeypatch):
    begin()
    assert log.form == log.TEXT
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    begin()
    assert log.form == log.PLAIN


def test_an_unknown_log_format_is_an_error(begin):
    assert message(lambda: begin("xml")) == "FL_LABELSKEW_LOG=xml: allowed: plain, text, json"


def test_recipe_errors_of_run_have_time_and_level(monkeypatch, tmp_path):
    monkeypatch.setenv(log.FORM, "text")
    run = call("run", tmp_path / "none.yaml", code=2)
    assert re.fullmatch(f"{TIME} ERROR   .*none.yaml: cannot be read: No such file or directory\n", run.stderr)
    other = call("validate", tmp_path / "none.yaml", code=2)
    assert other.stderr == f"error: {tmp_path}/none.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("form", ["plain", "text", "json"])
def test_forwarded_lines_have_one_time_and_level(form, begin, capfd):
    begin(form)
    together({"silo 1": [sys.executable, "-c", CHILD]}, environment={log.FORM: form})
    out, err = capfd.readouterr()
    assert (out.count("\n"), err.count("\n")) == (3, 4)
    lines = (out + err).splitlines()
    levels = ["INFO", "INFO", "WARNING", "WARNING", "ERROR", "ERROR", "WARNING"]
    texts = ["  a table's row", "two", "odd", "w", "a", "b", "Traceback (most recent call last):"]
    if form == "json":
        records = [json.loads(line) for line in lines]
        assert all(re.fullmatch(TIME, record.pop("time")) for record in records)
        wanted = [{"level": level, "message": text} for level, text in zip(levels, texts, strict=True)]
        wanted[-1]["message"] = f"silo 1 | {texts[-1]}"  # it had no form
        assert records == [line | {"part": "silo 1"} for line in wanted[:-1]] + wanted[-1:]
    elif form == "text":
        wanted = [f"{level:<7} silo 1 | {text}" for level, text in zip(levels, texts, strict=True)]
        assert [re.fullmatch(f"{TIME} (.*)", line)[1] for line in lines] == wanted
    else:
        texts[3:6] = ["warning: w", "error: a", "error: b"]
        assert lines == [f"silo 1 | {text}" for text in texts]
