"""Runs with and without FedML: identical numbers, and features that need FedML."""

import pytest
from error_messages import message
from fl_labelskew_registry import LabelSkewError
from recipe_texts import DIGITS

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.recipe import compatibility, parse, yaml
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.runtimes.options import RunOptions

pytestmark = pytest.mark.host
PAUSE = Pause(1, float("inf"))


def content(folder):
    return [(folder / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")]


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("fedavg", "FedOpt"), ("map", "FedAvg"), ("fedshift", "SCAFFOLD"), ("fd", "FedAvg"), ("ccvr", "FedAvg")],
)
def test_runs_have_the_same_numbers_without_the_host(method, optimizer, tmp_path):
    """FedML takes each turn: with clients' states, tensors of methods and optimisers, and a closing round."""
    train = DIGITS["train_args"] | {"federated_optimizer": optimizer}
    recipe = DIGITS | {"train_args": train, "method_args": {"method": method}}
    hosted, unhosted = (fl.run(recipe, tmp_path / host, host=host, quiet=True).folder for host in ("fedml", "none"))
    assert (hosted / "fedml.yaml").exists()
    assert not (unhosted / "fedml.yaml").exists()
    assert content(hosted) == content(unhosted)


@pytest.mark.parametrize(("first", "then"), [("fedml", "none"), ("none", "fedml"), ("none", None)])
def test_a_run_is_resumed_with_and_without_the_host(first, then, tmp_path):
    whole = fl.run(DIGITS | {"method_args": {"method": "map"}}, tmp_path / "whole", quiet=True).folder
    cut = tmp_path / "cut"
    start.start(RunOptions(whole / "recipe.yaml", run_dir=cut, pause=PAUSE, quiet=True, host=first))
    assert RunFolder(cut).environment["host"] == first
    start.start(RunOptions(resume=cut, quiet=True, host=then))
    assert content(cut)[0] == content(whole)[0]


def test_an_unknown_host_is_refused(tmp_path):
    line = message(lambda: fl.run(DIGITS, tmp_path / "run", host="None"))
    assert line == "host None: is unknown; use fedml or none"
    assert not (tmp_path / "run").exists()


def test_a_run_in_fedmls_own_code_is_not_resumed(tmp_path):
    path, file = tmp_path / "recipe.yaml", tmp_path / "run" / "environment.json"
    path.write_text(yaml.write(DIGITS))
    start.start(RunOptions(path, run_dir=tmp_path / "run", pause=PAUSE, quiet=True, host="fedml"))
    file.write_text(file.read_text().replace('"source": "own"', '"source": "corrected"'))
    line = message(lambda: start.start(RunOptions(resume=tmp_path / "run", quiet=True)))
    why = "this run's FedAvg has run in FedML's code, which this version does not use"
    assert line == f"--resume {tmp_path / 'run'}: {why}; use a new run"


NEEDS_FEDML = {
    "security_args.enable_attack": "attack_type=byzantine attack_mode=zero byzantine_client_num=1",
    "security_args.enable_defense": "defense_type=norm_diff_clipping norm_bound=1",
    "dp_args.enable_dp": "dp_solution_type=ldp mechanism_type=laplace epsilon=1 delta=0 sensitivity=0.1",
}


def test_fl_fedml_without_fedml(monkeypatch):
    monkeypatch.setattr(compatibility, "find_spec", lambda name: None)
    line = "fl.fedml: FedML is not installed; use Python 3.10 or 3.11, or labelskew run"
    assert message(lambda: fl.fedml) == line
    exec("from fl_labelskew_plugins import *", names := {})
    assert names.keys() - {"__builtins__"} == {*fl.__all__}
    assert "fedml" in dir(fl)


@pytest.mark.parametrize("key", NEEDS_FEDML)
def test_features_of_fedml_are_refused_without_it(key, tmp_path, monkeypatch):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.write(DIGITS))
    overrides = [f"{key}=true", *(f"{key.partition('.')[0]}.{setting}" for setting in NEEDS_FEDML[key].split())]

    def line(**options):
        asked = RunOptions(path, overrides, run_dir=tmp_path / "run", quiet=True, **options)
        return message(lambda: start.start(asked))

    said = f"{key}: true needs FedML's code, but this run does not use FedML; use false, or"
    assert line(host="none") == f"{said} --host fedml"
    monkeypatch.setattr(compatibility, "find_spec", lambda name: None)
    where = "Python 3.10 or 3.11, which FedML supports"
    assert line() == f"{said} {where}"
    assert line(host="fedml") == f"--host fedml: FedML is not installed here; use --host none, or {where}"
    with pytest.raises(LabelSkewError, match=r"or fl\.run, which uses FedML if it is installed"):
        fl.simulate(parse.load(path, overrides))
    assert not (tmp_path / "run").exists()
