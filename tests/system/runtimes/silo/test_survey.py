"""Surveys across silos: each sends its class counts once, or the reason of its refusal; nothing is trained."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from federations import FACTS, Lines, audited, finished
from fl_labelskew_registry import RunError
from recipe_texts import SILOS
from wire_table import Wire
from wiretap import watched

from fl_labelskew_plugins.methods.fedshift import smoothed_counts
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.sections import Policy
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.session import assemble
from fl_labelskew_plugins.runtimes.silo import facts
from fl_labelskew_plugins.runtimes.silo.client import SiloClient
from fl_labelskew_plugins.runtimes.silo.guard import Guard, PolicyError
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.server import SiloServer
from fl_labelskew_plugins.runtimes.silo.survey import SurveyAnswers, SurveyExchange
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message
from fl_labelskew_plugins.surveys.survey import of_partition

NOISY = ["method_args.method=fedshift", "method_args.count_noise=3"]


@pytest.fixture
def silo(tmp_path):
    """Silo 2 of three, of a recipe with these overrides and a policy, if any; its secret is its folder's name."""

    def make(*overrides, folder="silo", **policy):
        recipe = recipes.parse(SILOS, overrides=overrides)
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "secret").write_text(folder.encode().hex())
        (tmp_path / folder / "secret").chmod(0o600)
        guard = Guard(Policy(**policy), "/home/ann/north.yaml", tmp_path / folder) if policy else None
        place, data = tmp_path / folder, facts.load(recipe, 1)
        return SiloClient(Host(), Mock(limits={}), 2, recipe, data, place, Lines(), guard, answers=SurveyAnswers)

    return make


def answer(silo):
    silo.receive_message(Kind.SURVEY, Message(Kind.SURVEY, SERVER, 2))
    return silo.transport.send_message.call_args.args[0]


def counts(silo):
    return answer(silo).tensors["counts"]


def test_noise_of_a_survey_equals_that_of_an_opening_and_repeats(silo):
    made = silo(*NOISY)
    data = made.data
    session = assemble(made.recipe, data.data, *data.indices(1), [data.facts.samples] * 3, secret=made.seed())
    assert torch.equal(smoothed_counts(counts(made), smoothing=1.0), session.opening(1).tensors["smoothed"])
    assert torch.equal(counts(made), counts(silo(*NOISY)))
    assert not torch.equal(counts(made), torch.from_numpy(data.counts))
    assert not torch.equal(counts(made), counts(silo(*NOISY, folder="another")))
    assert answer(made).meta == {"count_noise": 3.0}


def test_the_larger_noise_of_policy_and_method_applies(silo):
    plain = silo(noise_at_least={"count_noise": 5}, folder="plain")
    assert answer(plain).meta == {"count_noise": 5.0}
    assert counts(plain).min() == 0  # what noise takes below
    assert not torch.equal(counts(plain), torch.from_numpy(plain.data.counts))
    more = silo(*NOISY, noise_at_least={"count_noise": 5}, folder="more")
    less = silo(*NOISY, noise_at_least={"count_noise": 1}, folder="less")
    assert [answer(made).meta["count_noise"] for made in (more, less)] == [5.0, 3.0]


def test_a_part_that_sends_no_class_counts_does_not_remove_the_noise(silo):
    made = silo("method_args.method=fedshift+feddisco", "method_args.fedshift.count_noise=4")
    assert answer(made).meta == {"count_noise": 4.0}
    assert not torch.equal(counts(made), torch.from_numpy(made.data.counts))


def test_hello_contains_no_exact_counts(silo):
    made = silo("train_args.proxy_aggregation=class")
    assert "counts" not in made.transport.hello().meta
    assert made.data.counts.sum() == made.transport.hello().meta["samples"]


def test_a_policy_that_requires_sums_refuses_a_survey_before_anything_is_sent(silo):
    with pytest.raises(PolicyError, match="require_secure_aggregation: true does not allow a survey, in which"):
        silo(require_secure_aggregation=True).answers.hello()


def test_a_survey_is_counted_once_as_an_answer(silo):
    for _ in range(2):
        made = silo(max_rounds=1)
        assert "counts" in answer(made).tensors
    (question,) = json.loads(made.guard.account.read_text())["runs"]["survey"]
    other = silo("method_args.method=fedlc", max_rounds=1)
    assert answer(other).meta["reason"].startswith("policy.max_rounds: 1 does not allow an answer to a sur")
    with pytest.raises(PolicyError, match="does not allow an answer to round 1 of run a"):
        other.guard.count_answer("a", 0, question)
    assert "reason" not in answer(silo("method_args.method=fedlc", max_rounds=2)).meta


def test_a_silo_does_not_train_in_a_survey(silo):
    made = silo()
    made.receive_message(Kind.WELCOME, Message(Kind.WELCOME, SERVER, 2, meta={"run": "0" * 16}))
    assert str(made.failure) == "the server trains, but this silo was started for a survey; restart it without --survey"
    made = silo()
    made.receive_message(Kind.TRAIN, Message(Kind.TRAIN, SERVER, 2, round=0))
    assert str(made.failure) == "the server requests training before it has described the run"
    assert [call.args[0].kind.name for call in made.transport.send_message.mock_calls] == ["FAILED"]


@pytest.fixture
def server(tmp_path, transports):
    """A server of three silos that waits only a moment, and its lines."""

    def make(*overrides):
        short = [f"comm_args.{key}=0.3" for key in ("quorum_timeout_s", "round_deadline_s", "reconnect_s")]
        recipe = recipes.parse(SILOS, overrides=[*short, "comm_args.min_clients=1", *overrides])
        transports.append(ServerTransport("127.0.0.1:0", silos=3))
        folder = RunFolder(tmp_path / "run")
        folder.hold()
        seen = status.Silos([""] * 3)
        show, exchanges = Lines(), lambda server: [SurveyExchange(server)]
        server = SiloServer(Host(), transports[0], recipe, None, show, "again", folder, seen, exchanges, survey=True)
        server.lines, server.survey = show.lines, server.exchanges[0].survey
        return server

    return make


def arrives(server, kind, rank, **content):
    server.transport.arrived.put(Message(kind, rank, SERVER, **content))


def gives(server, rank, row, noise=0.0):
    tensors = {"counts": torch.tensor(row)}
    arrives(server, Kind.SURVEY, rank, meta={"count_noise": noise}, tensors=tensors)


def hello(server, rank, samples):
    arrives(server, Kind.HELLO, rank, meta=FACTS | {"samples": samples})


def test_present_silos_are_surveyed_and_missing_ones_named(server):
    made = server()
    hello(made, 1, 50)
    hello(made, 3, 9)
    gives(made, 3, [1] * 10, noise=2.0)
    gives(made, 1, [5] * 10)
    for rank in (1, 3):
        arrives(made, Kind.FINISH, rank)
    survey = made.survey(["", "b", "c"])
    assert survey.clients == ["silo 1", "silo 3 (c)"]
    assert survey.counts.tolist() == [[5] * 10, [1] * 10]
    assert survey.noise == [0.0, 2.0]
    assert survey.silent == {"silo 2 (b)": "it has not connected"}
    assert survey.class_names == [str(c) for c in range(10)]
    assert "silo 2 has not connected; continuing without it" in made.lines


def test_a_survey_without_answers_fails(server):
    made = server()
    hello(made, 1, 50)
    arrives(made, Kind.SURVEY, 1, meta={"reason": "x\x1b[2J"})
    arrives(made, Kind.FINISH, 1)
    with pytest.raises(RunError, match="no silo has sent class counts above 0, so there is nothing to survey"):
        made.survey([""] * 3)
    assert "silo 1 sends no class counts: x?[2J" in made.lines


BAD = {
    "of shape (9,)": ({"counts": torch.ones(9, dtype=torch.int64)}, {}),
    "are not whole numbers": ({"counts": torch.ones(10)}, {}),
    "counts are not whole": ({}, {}),
    "negative integers": ({"counts": torch.full((10,), -1)}, {}),
    "tensors that its method does not announce: model/a": ({"model/a": torch.ones(10)}, {}),
    "sum to 30, but it has 50 training samples": ({"counts": torch.full((10,), 3)}, {}),
    "class counts sum to more than 1000000000 training samples": (
        {"counts": torch.full((10,), 2**62)},
        {"count_noise": 1.0},
    ),
    "count_noise is not a number from 0": ({"counts": torch.full((10,), 5)}, {"count_noise": "a"}),
    "count_noise is": ({"counts": torch.full((10,), 5)}, {"count_noise": 1e300}),
}


@pytest.mark.parametrize("says", BAD)
def test_an_invalid_answer_turns_a_silo_away(says, server):
    made, (tensors, meta) = server(), BAD[says]
    hello(made, 1, 50)
    hello(made, 2, 10)
    arrives(made, Kind.SURVEY, 1, meta={"count_noise": 0.0} | meta, tensors=tensors)
    gives(made, 2, [1] * 10)
    gives(made, 2, [0] * 10)  # a second answer counts for nothing
    gives(made, 3, [7] * 10)  # nor does one without HELLO
    arrives(made, Kind.FINISH, 2)
    survey = made.survey([""] * 3)
    assert survey.counts.tolist() == [[1] * 10]
    assert says in survey.silent["silo 1"]
    assert any(line.startswith("silo 1 turned away: ") and says in line for line in made.lines)


def test_counts_of_a_silo_that_is_turned_away_later_are_not_shown(server):
    made = server()
    for rank in (1, 2):
        hello(made, rank, 50)
        gives(made, rank, [5] * 10)
    arrives(made, Kind.FINISH, 1)
    hello(made, 2, -1)
    survey = made.survey([""] * 3)
    assert survey.clients == ["silo 1"]
    assert "samples" in survey.silent["silo 2"]


def test_a_reconnected_silo_is_surveyed_again(server, transports):
    made = server("comm_args.min_clients=1", "train_args.client_num_in_total=3")
    made.transport.send_message = asked = Mock()
    hello(made, 1, 50)
    arrives(made, Kind.LEFT, 1)
    hello(made, 1, 50)
    gives(made, 1, [5] * 10)
    hello(made, 1, 50)
    arrives(made, Kind.FINISH, 1)
    made.survey([""] * 3)
    assert [call.args[0].kind.name for call in asked.mock_calls] == ["SURVEY", "SURVEY", "FINISH"]


def test_one_command_surveys_all_silos_and_finds_the_partition(federation, certificates):
    run = federation.folder / "here"
    argv = ["run", federation.recipe, "--survey", "--run-dir", run, "--set", f"comm_args.certs={certificates}"]
    argv += ["--host", "none"]  # which starts faster
    log = federation.folder / "here.log"
    process = federation.forker.start(argv, log, environment={"COLUMNS": "80"}, fork_children=True)
    finished(process)
    expected = of_partition(recipes.load(federation.recipe))
    content = json.loads((run / "survey.json").read_text())
    assert [client["counts"] for client in content["clients"]] == expected.counts.tolist()
    assert content["federation"] == expected.content()["federation"] | {"worst": f"silo {expected.skew.worst + 1}"}
    assert content["suggestions"] == expected.content()["suggestions"]
    assert (run / "survey.csv").exists()
    assert (run / "survey.png").read_bytes().startswith(b"\x89PNG")
    assert not list(run.rglob("*.safetensors"))
    folders = (run, *run.glob("silos/*"))
    kinds = {line["kind"] for folder in folders for line in audited(folder) if "kind" in line}
    assert kinds == {"HELLO", "SURVEY", "FINISH"}
    assert status.read(run)["state"] == status.FINISHED
    lines = process.text.splitlines()
    place = lines.index("server | 60 % of the (client, class) pairs have no sample")
    shown = [line for line in lines[place:] if line.startswith("server | ")]
    assert max(map(len, shown)) <= 80
    assert any(line.startswith("server | fedshift  ") for line in shown)
    assert lines.count("silo 2 | the survey is over; nothing was trained") == 1


def test_policies_and_every_byte_of_a_survey(federation):
    policies = ("{}", "{send: [weights], methods: [fedmr]}", "{noise_at_least: {count_noise: 4}}")
    texts = [f"data_args: {{dataset: digits}}\npolicy: {policy}" for policy in policies]
    federation.give_files(**dict(zip(("one", "two", "three"), texts, strict=True)))
    server, proxy = watched(federation, "--survey")
    without = federation.silo(1)
    assert without.wait() == 2
    line = "the server runs a survey, but this silo was started for training; restart it with --survey"
    assert without.text.splitlines()[-1] == f"error: {line}"
    finished(server, *(silos := [federation.silo(rank, "--survey") for rank in (1, 2, 3)]))
    wire = Wire(proxy, {"C": 10, "d": 16}, {})
    came = {(field.message, field.name) for field in wire.seen if not isinstance(field, tuple)}
    assert {name for kind, name in came if kind == "SURVEY"} == {"tensor counts", "count_noise", "reason"}
    assert {kind for kind, _ in came} == {"HELLO", "SURVEY", "FAILED", "FINISH"}
    assert {name for kind, name in came if kind == "FINISH"} == {"done"}

    content = json.loads((federation.run_dir / "survey.json").read_text())
    exact, noisy = content["clients"]
    assert (exact["name"], exact["count_noise"], sum(exact["counts"])) == ("silo 1 (one)", 0, exact["samples"])
    assert (noisy["name"], noisy["count_noise"]) == ("silo 3 (three)", 4)
    assert noisy["counts"] != exact["counts"]  # each holds all of the digits
    assert np.abs(np.subtract(noisy["counts"], exact["counts"])).max() < 200
    refusal = 'policy.send: ["weights"] does not allow class counts for a survey'
    assert content["silent"]["silo 2 (two)"].startswith(refusal)
    assert f"silo 2 sends no class counts: {refusal}" in server.text
    where = federation.folder / "two.yaml"
    assert silos[1].text.count(f"warning: this silo sends no class counts: {where}: {refusal}") == 1
    assert not (federation.folder / "silo-2" / "account.json").exists()
    assert json.loads((federation.folder / "silo-3" / "account.json").read_text())["runs"].keys() == {"survey"}
    received = [line for line in audited(federation.run_dir) if line.get("kind") == "SURVEY"]
    assert len([line for line in received if "reason" in line]) == 1
