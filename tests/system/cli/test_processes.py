"""The commands as a user starts them: exit codes, imports, pipes and signals."""

import json
import signal
import subprocess
import sys
import sysconfig
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.recipe import parse

ROOT = Path(__file__).parents[3]
QUICK = ROOT / "recipes" / "quickstart.yaml"
LABELSKEW = Path(sysconfig.get_path("scripts")) / "labelskew"
HOST = ["fedml"] if find_spec("fedml") else []
HEAVY = ("torch", "fedml", "numpy", "pydantic", "sklearn", "matplotlib", "rich", "pandas", "jinja2", "yaml")


@pytest.mark.parametrize(
    "args", [["--version"], ["run", "-h"], ["status", "."], ["methods"], ["recipes", "ls"], ["run", "quickstrat"]]
)
def test_nothing_heavy_is_imported_before_it_is_needed(args, tmp_path):
    (tmp_path / "recipe.yaml").touch()
    needed = {("recipes", "ls"): ["pydantic", "rich", "yaml"], ("methods",): ["rich"]}
    needed |= {("run", "quickstrat"): ["pydantic", "yaml"]}
    script = f"""
import sys
from fl_labelskew_plugins.cli.main import main
try:
    main({args!r})
except SystemExit as end:
    assert (end.code or 0) == {2 * (args[-1] == "quickstrat")}
assert not (found := sys.modules.keys() & set({HEAVY!r}) - set({needed.get(tuple(args), [])!r})), found
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True, cwd=tmp_path)


def test_modules_that_checks_of_recipes_need_are_light():
    script = """
import importlib, pkgutil, sys
for name in ("partition", "data", "models"):
    package = importlib.import_module(f"fl_labelskew_plugins.{name}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(".given"):
            importlib.import_module(module.name)
    print(*{name.split(".")[0] for name in sys.modules} & {"torch", "torchvision", "sklearn", "PIL", "fedml"})
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True).splitlines() == ["", "", "torch"]


def test_a_run_shows_messages_before_slow_imports_and_contacts_no_network(tmp_path):
    script = f"""
import io, json, os, socket, sys
os.environ.update(FL_LABELSKEW_LOG="", TERM="dumb")
said, calls = {{}}, []
def refuse(*arguments, **options):
    calls.append(str(arguments))
    raise OSError("no network in this test")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.gethostbyname = refuse
class Screen(io.StringIO):
    def isatty(self):
        return True
    def write(self, text):
        said.setdefault(text.strip(), [name for name in ("torch", "fedml") if name in sys.modules])
        return len(text)
sys.stdout = Screen()
from fl_labelskew_plugins.cli.main import main
try:
    main(["run", {str(QUICK)!r}, "--set", "train_args.comm_round=1", "--run-dir", {str(tmp_path / "run")!r}])
finally:
    sys.stdout = sys.__stdout__
    print(json.dumps([said, calls]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    said, calls = json.loads(done.stdout)
    assert next(iter(said)) == "reading recipe ...", done
    assert said["reading recipe ..."] == []
    assert said.get("loading FedML ...") == (["torch"] if HOST else None)
    assert any(text.startswith("results: ") and names == ["torch", *HOST] for text, names in said.items())
    assert calls == []


def test_a_bug_is_an_error_of_python_and_not_a_message(monkeypatch):
    monkeypatch.setattr(parse, "read_text", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["validate", "x.yaml"])


def test_a_closed_pipe_is_not_an_error():
    with subprocess.Popen([LABELSKEW, "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # before anything was written
        stderr = process.stderr.read()
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr


def interrupted_after(module, command):
    """What a command ends with, and says, that is interrupted as soon as it has imported this module.

    Python reads the hook 20 to 60 ms after its start. What comes before that is Python's own, with its own traceback.
    """
    python = [sys.executable, "-Ximporttime", LABELSKEW.with_name(command[0]), *command[1:]]
    with subprocess.Popen(python, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
            if not line.startswith("import time:"):
                said.append(line)
            elif line.split("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
        return process.wait(), said, process.stdout.read()


HOSTED = partial(pytest.param, marks=pytest.mark.host)


@pytest.mark.parametrize(
    ("command", "module"),
    [
        HOSTED(["fedml", "run", QUICK], "re"),  # the hook's own
        HOSTED(["fedml", "run", QUICK], "numpy"),  # in our verb
        (["labelskew", "reproduce", QUICK], "click"),
        (["labelskew", "survey", QUICK], "numpy"),
    ],
)
def test_an_interrupt_during_imports_is_one_line(command, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert interrupted_after(module, command) == (130, ["interrupted\n"], "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.host
def test_an_interrupt_of_a_command_of_the_host_is_unchanged():
    code, said, _ = interrupted_after("numpy", ["fedml", "run", "list", "--help"])
    assert code == -signal.SIGINT
    assert "Traceback (most recent call last):\n" in said
