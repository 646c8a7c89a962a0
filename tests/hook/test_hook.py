"""The hook's own logic, on a click group like the host's."""

import importlib
import importlib.util
import signal
import sys
import warnings
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from fl_labelskew_plugins import hook


def stock():
    """A command line like the host's: a root with a group ``run`` that has one sub-command and two options."""

    @click.group("run")
    @click.help_option("--help", "-h")
    @click.option("--api_key", "-k")
    @click.option("--version", "-v", default="release")
    def run(api_key, version):
        """Stock help."""

    @run.command("list")
    @click.option("--run_name", "-r", default="")
    def list_runs(run_name):
        click.echo(f"stock list {run_name}")

    root = click.Group("fedml")
    root.add_command(run)
    return root, run


@pytest.fixture
def ours(monkeypatch):
    """A stand-in for our command."""

    @click.command("run")
    @click.argument("recipe", required=False)
    @click.option("--set", "overrides", multiple=True)
    @click.option("--resume")
    @click.option("--dry-run", is_flag=True)
    def run_command(recipe, overrides, resume, dry_run):
        click.echo(f"ours {recipe} {list(overrides)} {resume} {dry_run}")

    module = ModuleType(hook.COMMAND)
    module.run_command = run_command
    monkeypatch.setitem(sys.modules, hook.COMMAND, module)


def call(line, command=None):
    root, run = stock()
    hook.patch(run)
    words = line.split()
    return CliRunner().invoke(run if command == "run" else root, words[1:] if command == "run" else words)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("run r.yaml", "ours r.yaml [] None False"),
        ("run dir/R.YML", "ours dir/R.YML [] None False"),
        ("run r.yaml --set a=1 --dry-run --set b=2", "ours r.yaml ['a=1', 'b=2'] None True"),
        ("run --set a=1 r.yaml", "ours r.yaml ['a=1'] None False"),
        ("run --set=a=1 r.yaml", "ours r.yaml ['a=1'] None False"),
        ("run --dry-run r.yaml", "ours r.yaml [] None True"),
        ("run paper/row --dry-run", "ours paper/row [] None True"),
        ("run quickstart", "ours quickstart [] None False"),
        ("run quickstrat", "ours quickstrat [] None False"),  # which suggests the nearest recipe
        ("run --resume runs/x", "ours None [] runs/x False"),
        ("run --resume=runs/x", "ours None [] runs/x False"),
        ("run --resume runs/x --set a=1", "ours None ['a=1'] runs/x False"),
        ("run list", "stock list "),
        ("run list -r x.yaml", "stock list x.yaml"),
        ("run -v dev list", "stock list "),
        ("run --version=dev list", "stock list "),
        ("run -v r.yaml list", "stock list "),  # a value of a stock option is no recipe
    ],
)
def test_who_gets_the_call(ours, line, output):
    for command in (None, "run"):
        result = call(line, command)
        assert result.exit_code == 0, result.output
        assert result.output == output + "\n"


TYPOS = ["run lst", "run lsit", "run --verson dev list", "run -x", "run -k", "run -v dev"]


@pytest.mark.parametrize("line", TYPOS)
@pytest.mark.usefixtures("ours")
def test_a_typo_gets_the_stock_answer(line):
    root, _ = stock()
    expected = CliRunner().invoke(root, line.split())
    result = call(line)
    assert expected.exit_code == result.exit_code == 2
    if line != "run -v dev":  # the group's help, where ours adds its own lines
        assert result.output == expected.output


@pytest.mark.parametrize("line", ["run --help", "run -h", "run -v dev --help", "run -h r.yaml"])
@pytest.mark.usefixtures("ours")
def test_the_group_s_help_is_the_stock_one_and_tells_of_ours(line):
    result = call(line)
    assert result.exit_code == 0
    assert "Stock help." in result.output
    assert "fedml run RECIPE.yaml" in result.output


@pytest.mark.usefixtures("ours")
def test_our_help_and_errors_speak_of_fedml_run():
    assert call("run r.yaml --help").output.startswith("Usage: fedml run [OPTIONS] [RECIPE]\n")
    wrong = call("run r.yaml --bogus")
    assert wrong.exit_code == 2
    assert "No such option" in wrong.output


def test_where_our_command_does_not_import_the_stock_answer_comes_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, hook.COMMAND, None)
    result = call("run r.yaml")
    assert result.exit_code == 2
    assert "fl-labelskew-plugins cannot run r.yaml: ModuleNotFoundError" in result.output
    assert "No such command 'r.yaml'" in result.output
    assert "cannot run" not in call("run --resume x").output


def test_a_group_that_changed_is_left_alone(ours, monkeypatch):
    monkeypatch.setattr(hook, "_options", lambda command: 1 / 0)
    assert call("run list").output == "stock list \n"
    assert call("run r.yaml").exit_code == 2


@pytest.fixture
def fake_host(tmp_path, monkeypatch):
    """A package ``fedml`` whose ``cli.modules.run`` holds what a test writes into it."""
    folder = tmp_path / "fedml" / "cli" / "modules"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    for name in [name for name in sys.modules if name.split(".")[0] == "fedml"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not hook.Finder])
    yield folder / "run.py"
    for name in [name for name in sys.modules if name.split(".")[0] == "fedml"]:
        del sys.modules[name]


def test_the_finder_patches_the_one_module_once(fake_host):
    fake_host.write_text("import click\nfedml_run = click.Group('run')\nother = 1\n")
    hook.install()
    hook.install()
    assert sys.meta_path.count(hook.Finder) == 1
    assert hook.Finder.find_spec("fedml.cli", None) is None
    module = importlib.import_module(hook.TARGET)
    assert module.fedml_run.epilog == hook.EPILOG
    assert module.__spec__.loader.get_source(hook.TARGET).endswith("other = 1\n")
    assert hook.Finder not in sys.meta_path
    hook.install()
    assert hook.Finder not in sys.meta_path


@pytest.mark.parametrize("source", ["", "fedml_run = None", "fedml_run = 3"])
def test_another_host_imports_as_ever(fake_host, source):
    fake_host.write_text(source)
    hook.install()
    assert importlib.import_module(hook.TARGET).__spec__.name == hook.TARGET


def test_an_error_of_the_host_stays_its_own(fake_host):
    fake_host.write_text("raise ValueError('the host')")
    hook.install()
    with pytest.raises(ValueError, match="the host"):
        importlib.import_module(hook.TARGET)


def test_a_host_without_the_module_gives_the_ordinary_error(fake_host):
    hook.install()
    with pytest.raises(ModuleNotFoundError, match=r"fedml\.cli\.modules\.run"):
        importlib.import_module(hook.TARGET)


def test_a_finder_that_fails_steps_aside(fake_host, monkeypatch):
    fake_host.write_text("fedml_run = 3")
    hook.install()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: 1 / 0)
    assert importlib.import_module(hook.TARGET).fedml_run == 3


@pytest.mark.parametrize(
    ("argv", "ours"),
    [
        (["python", "/x/bin/fedml", "run", "recipes/a.yaml"], True),
        (["python", "/x/bin/fedml", "run", "--set", "a.b=c", "a.YML", "--quiet"], True),
        (["python", "/x/bin/fedml", "run", "--resume", "runs/x"], True),
        (["python", "/x/bin/fedml", "run", "fedmr/table1_fmnist_p10c2"], True),
        (["python", "/x/bin/fedml", "run", "quickstart"], True),
        (["python", "/x/bin/fedml", "run", "list"], False),
        (["python", "/x/bin/fedml", "run", "stop", "-k=a/b"], False),
        (["python", "-X", "/x/bin/labelskew"], True),
        (["python", "-m", "fl_labelskew_plugins.cli.main", "run", "a.yaml"], True),
        (["python", "/x/bin/fedml", "launch", "job.yaml"], False),
        (["python", "train.py", "run", "a.yaml"], False),
        (["python", "train.py", "fedml", "run", "a.yaml"], False),
        (["python", "train.py", "data/labelskew"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_only_our_calls_leave_the_host_s_import_warnings_out_and_end_in_a_line(argv, ours, monkeypatch):
    called, before = [], signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, hook.TARGET, raising=False)
    monkeypatch.setitem(sys.modules, hook.CLI, None)  # what stands there instead is gone at the end
    monkeypatch.setattr(sys, "orig_argv", argv)
    monkeypatch.setattr(hook, "_quiet_imports", lambda: called.append(1))
    while hook.Finder in sys.meta_path:
        sys.meta_path.remove(hook.Finder)
    hook.install()
    took = signal.signal(signal.SIGINT, before)
    assert (bool(called), took is hook.end) == (ours, ours)


@pytest.mark.parametrize(
    ("line", "quick"),
    [
        ("fedml run", False),
        ("fedml run --help", False),
        ("fedml run r.yaml", True),
        ("fedml run --resume=runs/x", True),
        ("/x/bin/fedml run quickstart --dry-run", True),
        ("fedml run list -r x.yaml", False),
        ("fedml launch r.yaml", False),
        ("fedml -h run r.yaml", False),
        ("labelskew run r.yaml", False),
        ("train.py run r.yaml", False),
    ],
)
def test_only_what_may_be_ours_gets_the_quick_command_line(line, quick, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not hook.Finder])
    monkeypatch.delitem(sys.modules, hook.TARGET, raising=False)
    monkeypatch.setitem(sys.modules, hook.CLI, None)
    monkeypatch.setattr(sys, "orig_argv", ["python", *line.split()])
    monkeypatch.setattr(hook, "end_in_a_line", lambda: None)
    monkeypatch.setattr(hook, "_quiet_imports", lambda: None)
    hook.install()
    assert (getattr(sys.modules[hook.CLI], "cli", None) is hook.cli) == quick


def test_the_filters_are_for_the_host_alone():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        hook._quiet_imports()
        for module in ("requests", "fedml.core.x", "mine.requests_like"):
            warnings.warn_explicit("w", UserWarning, "f.py", 1, module=module)
    assert len(seen) == 1
