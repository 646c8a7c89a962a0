"""The hook in real interpreters: installed, switched off, broken, left behind. The host's module is its own file."""

import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.host
PACKAGE = Path(__file__).parents[3] / "fl_labelskew_plugins"
COMMAND = """
import click

@click.command("run")
@click.argument("recipe", required=False)
@click.option("--resume")
def run_command(recipe, resume):
    click.echo(f"ours {recipe} {resume}")
"""
ROOT_GROUP = """
import click
from fedml.cli.modules import run

cli = click.Group("fedml")
cli.add_command(run.fedml_run)
"""
NAMES = "import sys; print('\\n'.join(sorted(sys.modules)))"


@pytest.fixture(scope="module")
def host(make_venv):
    """An environment with the host's module in a shell that imports fast."""
    made = make_venv()
    made.add_dependencies()
    modules = made.site / "fedml" / "cli" / "modules"
    modules.mkdir(parents=True)
    for package in (modules, modules.parent, modules.parent.parent):
        (package / "__init__.py").touch()
    (made.site / "fedml" / "api.py").touch()
    shutil.copy(distribution("fedml").locate_file("fedml/cli/modules/run.py"), modules)
    (modules.parent / "cli.py").write_text(ROOT_GROUP)
    return made


@pytest.fixture
def venv(host):
    """With the hook, and a stand-in for our command."""
    ours = host.site / "fl_labelskew_plugins"
    shutil.rmtree(ours, ignore_errors=True)
    shutil.copytree(PACKAGE / "hook", ours / "hook", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", ours)
    shutil.copy(PACKAGE / "hook" / "fl_labelskew_fedml_run.pth", host.site)
    (ours / "cli").mkdir()
    (ours / "cli" / "__init__.py").touch()
    (ours / "cli" / "run.py").write_text(COMMAND)
    (host.site / "fedml" / "__init__.py").write_text("")
    return host


def untouched(venv):
    """Python starts without output, and FedML's own command line is unchanged."""
    done = venv.run("python", "-c", "pass")
    assert (done.stdout, done.stderr) == ("", "")
    done = venv.run("fedml", "run", "list", "--help")
    assert done.stdout.startswith("Usage: fedml run list [OPTIONS]")
    assert done.stderr == ""
    done = venv.run("fedml", "run", "r.yaml", check=False)
    assert done.returncode == 2
    assert "No such command 'r.yaml'" in done.stderr
    assert "Traceback" not in done.stderr


def test_recipes_start_without_the_host(venv):
    (venv.site / "fedml" / "__init__.py").write_text("print('all of the host')\n")

    def answers(*words, host, **environment):
        done = venv.run("fedml", "run", *words, check=False, **environment)
        assert done.stdout.startswith("all of the host\n") == host, done
        return done.returncode, done.stdout.removeprefix("all of the host\n"), done.stderr

    off = {"FL_LABELSKEW_NO_HOOK": "1"}
    assert answers("no/such.yaml", host=False) == (0, "ours no/such.yaml None\n", "")
    assert answers("--resume", "runs/x", host=False) == (0, "ours None runs/x\n", "")
    assert answers("quickstrat", host=False) == (0, "ours quickstrat None\n", "")
    for words in ([], ["list", "--help"], ["-v", "dev", "list", "--help"], ["--bogus"], ["lst"]):
        assert answers(*words, host=True) == answers(*words, host=True, **off)
    code, _, wrong = answers("r.yaml", host=True, **off)
    assert code == 2
    assert "No such command 'r.yaml'" in wrong


def test_the_start_of_python_reads_only_two_small_modules(venv):
    with_hook = set(venv.run("python", "-c", NAMES).stdout.split())
    without = set(venv.run("python", "-c", NAMES, FL_LABELSKEW_NO_HOOK="1").stdout.split())
    assert with_hook - without - {"__future__"} == {"fl_labelskew_plugins", "fl_labelskew_plugins.hook"}


def test_the_hook_after_an_uninstall(venv):
    shutil.rmtree(venv.site / "fl_labelskew_plugins")
    untouched(venv)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("__init__.py", "raise RuntimeError"),
        ("hook/__init__.py", "def broken(:"),
        ("hook/__init__.py", "def install():\n    1 / 0\n"),
    ],
)
def test_broken_package_or_hook(venv, file, source):
    (venv.site / "fl_labelskew_plugins" / file).write_text(source)
    untouched(venv)


def test_a_broken_command_gives_its_reason_and_keeps_other_commands(venv):
    (venv.site / "fl_labelskew_plugins" / "cli" / "run.py").write_text("raise RuntimeError('torn')")
    untouched(venv)
    done = venv.run("fedml", "run", "r.yaml", check=False)
    assert "fl-labelskew-plugins cannot run r.yaml: RuntimeError: torn\n" in done.stderr
