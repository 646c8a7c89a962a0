"""``labelskew survey``, in this process; across silos: tests/system/runtimes/silo/test_survey.py."""

import json
import re
from pathlib import Path

import numpy as np
from commands import call, errors

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.cli.survey import text
from fl_labelskew_plugins.studies.sweep.plan import plan
from fl_labelskew_plugins.surveys.survey import Survey

QUICK = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"
SIX = ["--set", "train_args.client_num_in_total=6", "--set", "train_args.client_num_per_round=6"]


def test_survey_prints_tables_and_writes_files(tmp_path):
    output = call("survey", QUICK, "--out", tmp_path, *SIX).output
    title, holdings, measures, overall, notes, follows = output.split("\n\n")
    assert title.startswith("digits, pcdd: 6 clients, 14")
    _, *rows = [line.split() for line in holdings.splitlines()]
    assert [len(row) for row in rows] == [12] * 6
    assert measures.splitlines()[0].split()[:3] == ["client", "classes", "held"]
    assert overall.startswith("measure ")
    assert "80 % of the (client, class) pairs have no sample" in notes
    assert re.search(r"(?m)^fedlc-tau5 +65.24 ± 4.04 +\+11.71 +method_args: {method: fedlc, tau: 5.0}$", follows)
    assert follows.splitlines()[-1] == f"written: {tmp_path}/quickstart-survey.csv, .json and .png"
    assert (tmp_path / "quickstart-survey.png").read_bytes().startswith(b"\x89PNG")


def test_the_json_file_equals_the_table_in_python(tmp_path):
    call("survey", QUICK, "--out", tmp_path)
    written = json.loads((tmp_path / "quickstart-survey.json").read_text())
    frame = fl.survey(QUICK)
    assert frame["samples"].tolist() == [client["samples"] for client in written["clients"]]
    assert frame["hellinger"].tolist() == [client["hellinger"] for client in written["clients"]]


def test_compare_writes_a_sweep_of_the_suggested_methods(tmp_path):
    file = tmp_path / "compare.yaml"
    line = f"written: {file}; next: labelskew sweep {file}\n"
    assert call("survey", QUICK, "--out", tmp_path, "--compare", file, *SIX).output.endswith(line)
    assert file.read_text().startswith(f"# labelskew sweep {file}\n")
    runs = plan(file, [], tmp_path / "runs")
    assert len(runs) == 8 * 3
    assert {run.recipe.train.client_num_in_total for run in runs} == {6}
    assert [run.name for run in runs[::3]][:2] == ["ccvr-seed0", "fedlmd-tf-seed0"]
    assert (runs[6].recipe.method_name, runs[6].recipe.train.federated_optimizer) == ("fedlc", "FedOpt")
    before = file.read_bytes()
    assert errors("survey", QUICK, "--compare", file) == [f"--compare {file}: exists already; use another file"]
    assert file.read_bytes() == before
    three = ["--set", "train_args.client_num_in_total=3", "--set", "train_args.client_num_per_round=3"]
    three += ["--set", "partition_args.classes_per_client=8", "--set", "data_args.data_cache_dir=here"]
    three += ["--set", "train_args.federated_optimizer=SCAFFOLD"]
    call("survey", "quickstart", "--out", tmp_path, "--compare", tmp_path / "three.yaml", *three)
    runs = plan(tmp_path / "three.yaml", [], tmp_path / "runs")[::3]
    assert [run.name for run in runs] == ["fedavg-seed0", "fedlc-seed0", "fedshift-seed0"]
    assert {run.recipe.train.federated_optimizer for run in runs} == {"FedAvg"}
    assert {run.recipe.data.data_cache_dir for run in runs} == {str(Path("here").absolute())}


def test_mistakes_are_one_line_errors(tmp_path):
    line = f"{tmp_path / 'x.yaml'}: cannot be read: No such file or directory"
    assert errors("survey", tmp_path / "x.yaml") == [line]
    assert len(errors("survey", QUICK, "--set", "partition_args.classes_per_client=11")) == 1
    (tmp_path / "file").write_text("")
    assert "cannot be written" in call("survey", QUICK, "--out", tmp_path / "file", code=2).stderr
    (line,) = errors("run", QUICK, "--survey")
    assert line.startswith("--survey: comm_args.backend sp has no silos; use labelskew survey RECIPE")
    line = "--survey trains nothing; use it without --resume"
    assert errors("run", "--survey", "--resume", "x") == [line]
    line = "--survey asks silos, which --dry-run does not; use one of them"
    assert errors("run", QUICK, "--survey", "--dry-run") == [line]


def test_of_many_clients_the_most_and_least_skewed_are_listed():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (3500, 62))
    counts[1234] = 0
    counts[1234, 7] = 900
    survey = Survey("many", [f"writer {k}" for k in range(3500)], [str(c) for c in range(62)], counts)
    title, measures, overall, *_ = text(survey).split("\n\n")
    assert "(listed: the 20 clients with the class shares that differ most" in title
    rows = [line for line in measures.splitlines() if line.startswith("writer")]
    assert len(rows) == 20
    assert rows[0].startswith("writer 1234 ")
    assert overall.splitlines()[1].split()[:2] == ["classes", "held"]
    assert len(survey.content()["clients"]) == len(survey.frame) == 3500
    counts[5:] = 0  # and a client is not listed twice where few hold any
    rows = text(Survey("few", survey.clients, survey.class_names, counts)).split("\n\n")[1].splitlines()
    assert sorted(row.split()[1] for row in rows if row.startswith("writer")) == list("01234")


def test_foreign_names_are_cleaned():
    survey = Survey("x", ["\x1b[2Jnorth\nround 9/9", "south"], ["a\u202e", "b"], np.array([[3, 0], [0, 4]]))
    shown = text(survey)
    assert all(line.isprintable() for line in shown.splitlines())
    assert "?[2Jnorth?round 9/9" in shown
