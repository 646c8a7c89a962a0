"""``labelskew check``: the same numbers in every runtime, and what is printed if they differ."""

import json

import pytest
import torch
from commands import call, errors
from fl_labelskew_registry import LabelSkewError
from safetensors.torch import save_file

from fl_labelskew_plugins.studies import check
from fl_labelskew_plugins.studies.check import Outcome, outcomes_of

HEAD = """\
import torch
from fl_labelskew_registry import Method
from fl_labelskew_plugins.params import Params

COUNT = 0

class A(Method):
    Params = Params

"""
CHANGES_NETWORK = """\
    def before_round(self, client):
        if client.id == 0:
            client.model.classifier.weight.requires_grad_(False)
        client.model.classifier.register_forward_hook(lambda module, given, logits: logits * 0.9)

    def after_round(self, client):
        client.state["rounds"] = client.state.get("rounds", torch.zeros(1)).add_(1)

    def calibrate(self, logits, client):
        return logits / (1 + float(client.state.get("rounds", 0)))
"""
COUNTS = """\
    def before_round(self, client):
        global COUNT
        COUNT += 1

    def calibrate(self, logits, client):
        return logits / (1 + 0.2 * COUNT)
"""


@pytest.fixture
def plugin(write_plugin, tmp_path, monkeypatch):
    """A method that this process and those that it starts find."""

    def plugin(body, name):
        folder = tmp_path / name
        folder.mkdir()
        write_plugin(folder, "fl_labelskew.methods", HEAD + body, name=name, module=name)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return plugin


@pytest.mark.usefixtures("fork_children")
def test_a_frozen_head_and_hooks_of_a_client_affect_no_other_client(plugin, capfd):
    """As a real run: over MPI each worker has some of the clients that one process has, and each silo has one."""
    plugin(CHANGES_NETWORK, "frozen_head")
    outcomes = [*outcomes_of("frozen_head")]
    said = [("sp", "ok"), ("resumed", "same"), ("MPI", "same"), ("silos", "same")]
    assert [str(outcome) for outcome in outcomes] == [f"frozen_head, {name}: {word}: " for name, word in said]
    assert capfd.readouterr() == ("", "")


def test_numbers_kept_in_a_global_variable_differ(plugin):
    plugin(COUNTS, "counts_rounds")
    _, outcome = outcomes_of("counts_rounds", runtimes=["resumed"])
    assert outcome.bad
    assert str(outcome).startswith("counts_rounds, resumed: differs: metrics.jsonl, round 1: loss_terms is {")
    assert outcome.detail.endswith("a hook keeps numbers outside client.state and the tensors of combine")


def test_the_command_prints_a_table_and_ends_with_1(plugin):
    plugin("    def before_round(self, client):\n        self.n = 1\n", "on_self")
    done = call("check", "on_self", code=1)
    head, row, line = done.output.splitlines()
    assert head.split() == ["method", "sp", "resumed", "MPI", "silos"]
    assert row.split() == ["on_self", "failed", "-", "-", "-"]
    assert line.startswith("on_self, sp: failed: A.before_round (on_self) changed self.n; all clients of a process ")
    assert check.check("on_self") == [line]


def test_an_unavailable_runtime_is_skipped(plugin, monkeypatch):
    plugin('    runtimes = ("sp", "MPI")\n', "no_silos")
    monkeypatch.setenv("PATH", "")
    _, mpi, silos = outcomes_of("no_silos", runtimes=("MPI", "silos"))
    assert str(mpi).startswith("no_silos, MPI: skipped: comm_args.backend: MPI needs mpirun on PATH, which is missi")
    assert silos == Outcome("no_silos", "silos", "skipped", "its runtimes are sp, MPI")


def test_a_method_with_a_required_parameter_needs_its_value(plugin):
    body = "    class Params(Params):\n        strength: float\n"
    plugin(body, "needs_strength")
    (line,) = errors("check", "needs_strength")
    assert "needs_strength.yaml: method_args.strength: " in line
    (outcome,) = outcomes_of("needs_strength", overrides=["method_args.strength=1"], runtimes=())
    assert outcome == Outcome("needs_strength", "sp", "ok")
    with pytest.raises(LabelSkewError, match=r"train_args.epoch: unknown"):
        [*outcomes_of("needs_strength", overrides=["train_args.epoch=1"], runtimes=())]


def test_difference(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    line, tensors = {"round": 0, "loss": 1.0, "own": 2.0}, {"a": torch.zeros(2), "b": torch.zeros(1)}

    def write(folder, lines, tensors):
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        save_file(tensors, folder / "model.safetensors")

    write(one, [line], tensors)
    save_file(tensors, one / "clients" / "client000000.safetensors")
    for lines, found, what in (
        ([line, {"loss": 1.0}], tensors, "metrics.jsonl, round 2: loss is null in one process and 1.0 here"),
        ([{"round": 0, "loss": 1.0}], tensors, "metrics.jsonl, round 1: own is 2.0 in one process and null here"),
        ([line | {"loss": 2.0}], tensors, "metrics.jsonl, round 1: loss is 1.0 in one process and 2.0 here"),
        ([line], {"a": torch.zeros(2)}, "model.safetensors: b differs"),
        ([line], tensors | {"a": torch.zeros(3)}, "model.safetensors: a differs"),
        ([line], tensors | {"a": torch.ones(2)}, "model.safetensors: a differs"),
        ([line], tensors, "clients/client000000.safetensors is missing"),
    ):
        write(other, lines, found)
        assert check.difference(one, other) == what
    write(other, [{"round": 0, "loss": 1.0}], tensors)
    assert not check.difference(one, other, partial=True)
