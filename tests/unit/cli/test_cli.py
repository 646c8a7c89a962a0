"""The commands, in this process; test_processes.py has the tests that need separate processes."""

import json
import re
from pathlib import Path

import pytest
from commands import call, errors
from fl_labelskew_registry import LabelSkewError, catalog
from recipe_texts import TABLE
from run_folders import folder, resolved

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.recipe import parse, shipped

ROOT = Path(__file__).parents[3]
QUICK = ROOT / "recipes" / "quickstart.yaml"
MODELINE = "# yaml-language-server: $schema=recipe.schema.json\n"


def test_a_mistake_is_one_line_and_exit_code_2(capsys):
    def verb():
        raise LabelSkewError("a\nb")

    with pytest.raises(SystemExit) as end:
        guarded(verb)()
    assert (end.value.code, capsys.readouterr().err) == (2, "error: a b\n")


def every_command(command=main, path=()):
    yield path, command
    for name, part in getattr(command, "commands", {}).items():
        yield from every_command(part, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in every_command()], ids=" ".join)
def test_help_has_complete_sentences(path):
    command = dict(every_command())[path]
    text = call(*path, "--help", COLUMNS="80").output
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.partition("\n\n")[2].replace("[ARGS]...", "")
    listed = text.partition("\nCommands:\n")[2]
    for name, part in getattr(command, "commands", {}).items():
        assert re.fullmatch(r"[A-Z].{9,}\.", part.short_help)
        assert " ".join(part.short_help.split()) in " ".join(listed.split()), name
        assert len(part.short_help) <= 2 * 62, "two lines of the list"
    for option in command.params:
        if option.param_type_name == "option":
            assert option.help, option.name
            assert re.sub(r"  \[default: .*\]$", "", option.help).endswith("."), option.help


@pytest.mark.parametrize("verb", ["methods", "partitions", "datasets", "models", "trackers"])
def test_lists_and_details(verb):
    entries = catalog.entries("partitioners" if verb == "partitions" else verb)
    head, *listed = [re.split("  +", line, maxsplit=1) for line in call(verb, COLUMNS="200").output.splitlines()]
    assert head == ["name", "description"]
    assert [name for name, _ in listed] == [entry.name for entry in entries]
    for name, what in listed:
        assert " ".join(call(verb, name).output.split()).startswith(f"{name}: {what}")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('class A:\n    """What\x1b[2J it is.\n\n    More.\n    """\n\n1 / 0', "What?[2J it is. (acme)"),
        ("class A:\n    pass", "(acme)"),
        ("A = 1", "(acme)"),
        ("class A(:", "(acme)"),
    ],
)
def test_a_plugin_is_listed_without_being_imported(source, line, register):
    register("fl_labelskew.methods", source)
    lines = call("methods").output.splitlines()
    assert [row.split(maxsplit=1)[1] for row in lines if row.startswith("acme ")] == [line]
    assert any(row.startswith("fedrs ") for row in lines)


def test_details_show_paper_parameters_and_results():
    output = call("methods", "fedlc", COLUMNS="120").output
    assert "paper: Federated Learning with Label Distribution Skew" in output
    assert "aggregation: samples" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["parameter", "default", "meaning", "[allowed]"] in rows
    assert any(row[:2] == ["tau", "1.0"] and row[-6:] == ["[a", "number", "of", "at", "least", "0]"] for row in rows)
    assert any(row[:2] == ["missing", "one"] for row in rows)
    assert "classes_per_client  required" in call("partitions", "pcdd").output
    assert re.search(r"^method +optimiser.*own splits", output, re.MULTILINE)
    assert call("partitions", "iid").output.endswith("no parameters\n")
    output = call("methods", "fedlc", COLUMNS="80").output
    assert max(len(line) for line in output.splitlines() if "\\" not in line) <= 80
    assert "\n    \\mathcal{L} = -\\log \\frac{\\exp(z_y - \\tau \\, n_y^{-1/4})}{\\sum_c " in output
    assert "\nDeviations of the defaults from the paper:\n- denominator: full keeps" in output
    assert re.search(r"^FedLC +tau 5 +71.18 ± 0.33 +84.11 ± 2.25", output, re.MULTILINE)
    assert "own splits" not in re.search(r"^method +optimiser.*", output, re.MULTILINE)[0]  # no room for all columns
    output = call("optimizers", "Mime").output
    assert "Our accuracy" not in output
    assert "Deviations of the defaults" in output


def test_details_of_a_plugin_whose_deviations_fail(register):
    register(
        "fl_labelskew.methods",
        "from fl_labelskew_plugins.methods.fedavg import FedAvg\n\nclass A(FedAvg):\n"
        '    r"""A loss.\n\n    Equation 1:\n\n    .. math:: \\frac{a + b}{c\x1b} \\unknown{\n    """\n'
        "    def deviations(self): return 1 / 0",
    )
    output = call("methods", "acme", COLUMNS="120").output
    assert "Equation 1:\n\n    \\frac{a + b}{c?} \\unknown{" in output
    assert "- not available: " in output
    assert "ZeroDivisionError: division by zero" in output


def test_a_broken_plugin_is_listed_and_its_details_are_one_line(monkeypatch):
    broken = catalog.Entry("aaa", "somebody", "no.such.module:Thing")
    real = catalog.entries
    monkeypatch.setattr(catalog, "entries", lambda kind: sorted([broken, *real(kind)]))
    assert "aaa" in call("methods").output
    (line,) = errors("methods", "aaa")
    assert line.startswith("method 'aaa' of distribution somebody (no.such.module:Thing) does not import: ")
    assert call("methods", "fedrs").output.startswith("fedrs: ")
    (line,) = errors("methods", "fedm")
    assert line.endswith("(nearest: fedmr)")


def test_a_plugin_in_an_unknown_group_is_reported(register, tmp_path):
    register("fl_labelskew.method", "raise SystemExit('imported')")
    line = "acme registers 'acme' in the group fl_labelskew.method, which does not exist; use fl_labelskew.methods"
    assert call("methods").stderr == f"warning: {line}\n"
    assert call("models").stderr == ""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("data_args: {dataset: digits}\nmodel_args: {model: mlp}\nmethod_args: {method: acme}\n")
    for method in ("acme", "acme+fedlc"):
        (wrong,) = errors("validate", recipe, "--set", f"method_args.method={method}")
        assert wrong.startswith("--set method_args.method: 'acme' is unknown; allowed: ccvr, fd, fedavg, ")
        assert wrong.endswith(f"; {line}")


def test_recipes_are_listed_shown_and_copied(tmp_path):
    listed = call("recipes", "ls").output
    rows = [line.split() for line in listed.splitlines()]
    assert rows[0] == ["name", "method", "data", "network", "clients", "rounds"]
    assert ["quickstart", "fedrs", "digits", "mlp", "10", "10"] in rows
    assert "fedrs/" not in listed
    assert re.search(r"\npapers' experiments, with --paper: fedlc \(\d+\), fedmr \(\d+\), ", listed)
    assert "small/fedmr_fmnist" in listed
    assert call("recipes", "show", "quickstart").output == QUICK.read_text()
    assert call("recipes", "show", "quickstart.yaml").output == QUICK.read_text()
    assert call("recipes", "cp", "quickstart", tmp_path).output == f"{tmp_path / 'quickstart.yaml'}\n"
    assert (tmp_path / "quickstart.yaml").read_text() == QUICK.read_text()
    schema = tmp_path / shipped.SCHEMA
    assert schema.read_text() == (QUICK.parent / shipped.SCHEMA).read_text()
    schema.write_text("mine")
    call("recipes", "cp", "small/fedmr_fmnist", tmp_path / "mine.yaml")
    first, second, *_ = (tmp_path / "mine.yaml").read_text().splitlines()
    assert f"{first}\n" == MODELINE
    assert second == "# fedml run recipes/small/fedmr_fmnist.yaml"
    assert schema.read_text() == "mine"


@pytest.mark.parametrize("name", ["quickstrat", "../pyproject", "/etc/passwd", ""])
def test_only_shipped_recipes_are_found(name):
    (line,) = errors("recipes", "show", name)
    assert line.startswith(f"recipe '{name}' is unknown; use one of labelskew recipes ls")


def test_recipes_of_one_paper_are_listed_and_copied(tmp_path):
    lines = call("recipes", "ls", "--paper", "FedMR").output.splitlines()[1:]
    assert all(row.startswith("fedmr/") for row in lines)
    (row,) = [row for row in lines if row.startswith("fedmr/table1_fmnist_p10c2 ")]
    assert row.split()[1:6] == ["fedmr", "fashion_mnist", "resnet18", "10", "100"]
    assert row.endswith("  74.97 (Table 1)")
    (row,) = [row for row in lines if row.startswith("fedmr/table2_cifar100_p50c10 ")]
    assert "53.36 (Table 2); 293" in row
    (line,) = errors("recipes", "ls", "--paper", "femr")
    assert line == "--paper 'femr' is unknown; allowed: fedlc, fedmr, fedrs, fedshift, map; did you mean fedmr?"
    copy = tmp_path / "table1_fmnist_p10c2.yaml"
    assert call("recipes", "cp", "fedmr/table1_fmnist_p10c2", tmp_path).output == f"{copy}\n"
    assert copy.read_text() == MODELINE + call("recipes", "show", "fedmr/table1_fmnist_p10c2").output
    assert parse.load(copy).dump() == parse.load("fedmr/table1_fmnist_p10c2").dump()


def test_validate_takes_a_whole_table(tmp_path):
    table = tmp_path / "mine.yaml"
    table.write_text(TABLE)
    assert call("validate", table).output == f"{table}: ok, 4 recipes\n"
    (line,) = errors("validate", table, "--set", "train_args.epochs=0")
    assert line.startswith(f"{table}: exp1_mlp_pcdd_fedavg, exp1_mlp_pcdd, wide_fedavg, wide: --set train_args.epochs:")
    table.write_text(TABLE.replace("mu1: 0.1}", "mu1: -1}").replace("split: pcdd, name", "split: pcd, name"))
    (line,) = errors("validate", table)
    assert line == f"{table}: Exp 1, row 2, wide_fedavg: split: 'pcd' is unknown; allowed: pcdd; did you mean pcdd?"
    table.write_text(TABLE.replace("mu1: 0.1}", "mu1: -1}"))
    (line,) = errors("validate", table)
    assert line.startswith(f"{table}: wide: method_args.mu1: -1 is out of range; allowed: ")
    assert errors("run", table) == [f"{table}: is a table of recipes; use one of its rows: {tmp_path / 'mine' / 'ROW'}"]


def test_validate_refuses_what_a_run_without_fedml_refuses(tmp_path):
    noise = "enable_dp=true dp_solution_type=ldp mechanism_type=laplace epsilon=1 delta=0 sensitivity=0.1"
    words = ["--host", "none", *(word for setting in noise.split() for word in ("--set", f"dp_args.{setting}"))]
    (line,) = errors("validate", QUICK, *words, "--set", "method_args.method=fedavg")
    assert line.startswith(f"{QUICK}: dp_args.enable_dp: true needs FedML's code")
    assert call("validate", QUICK, "--host", "none").stdout == f"{QUICK}: ok\n"
    table = tmp_path / "mine.yaml"
    table.write_text(TABLE)
    (line,) = errors("validate", table, *words)[:1]
    assert "dp_args.enable_dp: true needs FedML's code" in line


def test_validate_shows_all_files_and_all_mistakes(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(QUICK.read_text().replace("epochs: 2", "epochs: 0").replace("alpha: 0.5", "alhpa: 0.5"))
    result = call("validate", bad, QUICK, tmp_path / "nope.yaml", code=2)
    assert result.stdout == f"{QUICK}: ok\n"
    lines = result.stderr.splitlines()
    assert [line.split(";")[0] for line in lines] == [
        f"error: {bad}: train_args.epochs: 0 is out of range",
        f"error: {bad}: method_args.alhpa: unknown key",
        f"error: {tmp_path / 'nope.yaml'}: cannot be read: No such file or directory",
    ]
    assert call("validate", QUICK).stdout == f"{QUICK}: ok\n"
    assert len(errors("validate", QUICK, "--set", "train_args.epochs=0")) == 1
    assert call("validate", code=2).stderr.startswith("Usage: ")


def test_schema_is_json():
    assert json.loads(call("schema").output)["$defs"]["recipe"]["properties"]["method_args"]


def test_report_shows_finished_runs_names_the_others_and_writes_files_atomically(tmp_path):
    run = folder(tmp_path / "a", resolved(), [0.5])
    call("report", run, "--html", tmp_path / "r.html", "--plot", tmp_path / "r.png", "--last", "1")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    call("report", run, "--plot", tmp_path / "r.SVG", "--width", 3.25)
    assert {file.name for file in tmp_path.iterdir()} == {"a", "r.html", "r.png", "r.SVG"}
    assert 'width="234pt"' in (tmp_path / "r.SVG").read_text()
    line = "--plot r.jpg: unsupported picture format; use a name that ends in .png or .pdf or .svg"
    assert errors("report", run, "--plot", "r.jpg") == [line]
    assert errors("report", run, "--width", "3") == ["--width 3.0: needs --plot; use it with --plot FILE"]
    line = "baseline: 'fedvag' is unknown; allowed: fedavg; did you mean fedavg?"
    assert errors("report", run, "--baseline", "fedvag") == [line]
    (tmp_path / "c").mkdir()
    result = call("report", run, tmp_path / "b", tmp_path / "c", code=2)
    assert "50.00" in result.stdout
    assert result.stderr.splitlines() == [
        f"error: {tmp_path / 'b'}: no such folder",
        f"error: {tmp_path / 'c'}: not a run folder: recipe.yaml is missing",
    ]
