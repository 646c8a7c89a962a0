"""Servers that ask for more than a silo's policy allows: silos are processes, the server is this one."""

import json
import math
import re
import shutil
import threading
from dataclasses import asdict, replace

import pytest
import torch
from federations import audited, fingerprint

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runtimes.silo import certs, facts
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.transport import Kind, Message

NOISE = ["method_args.upload_clip=1", "method_args.upload_sigma=4"]
ASKED = {"times_selected": 1, "state_round": -1, "kept_rounds": [], "personalised": False}


class FakeServer:
    """Welcomes silo 1 to a run and asks for one answer after the other; then it says that the run is over.

    ``questions``: round, a factor of the weights, and the kind if that is not TRAIN; ``factor``: of the final weights.
    """

    def __init__(self, address, recipe, questions, *, run="a" * 16, tls=None, quorum=2, factor=1.0, **federation):
        self.session, self.factor = recipe, factor
        self.questions, self.run, self.quorum = list(questions), run, quorum
        self.federation = replace(recipe.federation, **federation)
        self.uploads, self.tests, self.failed, self.kinds = [], [], None, []
        self.transport = ServerTransport(address, silos=3, tls=tls)
        self.transport.limits = dict.fromkeys(self.transport.limits, 2**30)
        self.transport.add_observer(self)
        threading.Thread(target=self.transport.handle_receive_message, daemon=True).start()

    def receive_message(self, kind, arrived):
        self.kinds.append(Kind(kind).name)
        if kind == Kind.HELLO:
            settings = facts.agreed(self.session.recipe)
            words = {"run": self.run, "federation": asdict(self.federation), "settings": settings}
            self.send(Kind.WELCOME, meta=words | {"quorum": self.quorum})
            self.ask()
        elif kind == Kind.UPLOAD:
            self.uploads.append(arrived.tensors)
            self.send(Kind.VERDICT, round=arrived.round, meta={"taken": True})
            self.ask()
        elif kind == Kind.TESTED:
            self.tests.append(arrived.meta)
            self.ask()
        elif kind == Kind.FAILED:
            self.failed = arrived.meta["reason"]

    def ask(self):
        weights = {f"model/{name}": value for name, value in self.session.start.items()}
        if not self.questions:
            final = {name: value * self.factor for name, value in weights.items()}
            self.send(Kind.FINISH, meta={"done": True, "state_round": -1}, tensors=final)
            return
        round, factor, *kind = self.questions.pop(0)
        meta = ASKED | {"kept_rounds": list(range(len(self.uploads)))}  # which is none of the question
        tensors = {k: v * factor for k, v in reversed(weights.items())}  # in an unusual order
        self.send(*kind or [Kind.TRAIN], round=round, meta=meta, tensors=tensors)

    def send(self, kind, **content):
        self.transport.send_message(Message(kind, 0, 1, **content))


@pytest.fixture
def scene(federation, transports):
    """A silo of this policy meets a server, and must end with this exit code; the server and the silo's process."""
    federation.host = "none"
    federation.give_files(one="", two="", three="")

    def play(policy, questions=(), *, code=0, over=False, **options):
        for file in (federation.folder / "silo-1").glob("*/summary.json"):
            if not over:
                file.unlink()  # as if the run of the last call had not ended
        (federation.folder / "one.yaml").write_text(f"policy: {json.dumps(policy)}")
        silo_recipe = recipes.silo(recipes.load(federation.recipe, federation.overrides), 1)
        data = facts.load(silo_recipe, 0)
        made = session.assemble(silo_recipe, data.data, *data.indices(0), [data.facts.samples] * 3)
        server = FakeServer(federation.address, made, questions, **options)
        transports.append(server.transport)
        process = federation.silo(1)
        assert process.wait() == code, process.text
        server.transport.stop_receive_message()
        return server, process

    return play


def refusal(federation, key, text):
    return f"error: {federation.folder / 'one.yaml'}: policy.{key}: {text}, which the server asks for\n"


def test_a_server_cannot_reopen_a_run_that_is_over(scene, federation):
    """It would replace the silo's results."""
    _, process = scene({}, [(0, 1.0)])
    (folder,) = (federation.folder / "silo-1").glob("*" + "a" * 16)
    kept = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    server, process = scene({}, [(0, 2.0)], over=True, code=1)
    text = f"the server requests training in run {'a' * 16}, which is over"
    assert process.text.endswith(
        f"error: {text}; to continue it, remove {folder}/summary.json, and restart this silo\n"
    )
    assert (server.uploads, server.failed) == ([], text)
    _, process = scene({}, over=True, factor=0.0)
    assert f"the run is over; results: {folder}" in process.text
    # a later run with more rounds gets its name
    federation.overrides = [*federation.overrides, "train_args.comm_round=9", "method_args.method=fedlc"]
    _, process = scene({}, [(0, 2.0)], over=True, code=1)
    assert f"error: {text}" in process.text
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == kept


def test_a_late_test_keeps_a_silos_records_of_later_rounds(scene, federation):
    federation.overrides = [*federation.overrides, "validation_args.per_client=true"]
    test = (0, 1.0, Kind.TEST)
    scene({}, [(0, 1.0), test, (1, 1.0), test])
    (folder,) = (federation.folder / "silo-1").glob("*" + "a" * 16)
    lines = read_lines(folder / "metrics.jsonl")
    assert [(line["round"], "accuracy" in line) for line in lines] == [(0, True), (1, False)]
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2


def test_a_server_gets_at_most_the_answers_of_the_policy(scene, federation):
    limits = {"max_rounds": 3, "max_answers_per_round": 1}
    # the same question again, and again after the verdict: the same answer, which is one
    server, process = scene(limits, [(0, 1.0), (0, 1.0), (1, 1.0)])
    first, again, other = server.uploads
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    # a restarted silo, and other weights in a round that is answered
    server, process = scene(limits, [(0, 1.0), (0, 2.0)], code=1)
    assert all(torch.equal(first[name], server.uploads[0][name]) for name in first)
    assert len(server.uploads) == 1
    line = "1 does not allow another answer to round 1 of run aaaaaaaaaaaaaaaa"
    assert process.text.endswith(refusal(federation, "max_answers_per_round", line))
    assert server.failed == f"policy.max_answers_per_round: {line}, which the server asks for"
    # another run: the rounds of both count
    server, process = scene(limits, [(0, 1.0), (1, 1.0)], run="b" * 16, code=1)
    assert len(server.uploads) == 1, process.text
    account = federation.folder / "silo-1" / "account.json"
    line = "3 does not allow an answer to round 2 of run bbbbbbbbbbbbbbbb after 3 earlier ones"
    assert process.text.endswith(refusal(federation, "max_rounds", line)[:-1] + f" ({account})\n")
    answers = json.loads(account.read_text())["runs"]
    assert {run: {round: len(given) for round, given in rounds.items()} for run, rounds in answers.items()} == {
        "a" * 16: {"0": 1, "1": 1},
        "b" * 16: {"0": 1},
    }
    words = [line["reason"] for line in audited(account.parent) if line.get("kind") == "FAILED"]
    assert len(words) == 2
    assert "policy.max_rounds: 3 does not allow" in words[1]


@pytest.mark.parametrize("question", [(0, 1.0), (0, 1.0, Kind.TEST)])
def test_the_same_question_counts_again_after_the_data_have_changed(question, scene, federation):
    """The difference of two answers to one question would be the effect of the changed samples."""
    federation.overrides = ["validation_args.per_client=true", "comm_args.send_measures=true"]
    counts = {"num_samples": 5000, "min_samples": 1}
    server, process = scene({"max_answers_per_round": 1}, [question], **counts)
    assert len(server.uploads) + len(server.tests) == 1, process.text
    federation.overrides.append("data_args.test_fraction=0.3")
    server, process = scene({"max_answers_per_round": 1}, [question], **counts, code=int(len(question) == 2))
    assert "max_answers_per_round: 1 does not allow another answer to round 1" in process.text
    assert (server.uploads, server.tests) == ([], [] if len(question) == 2 else [{}])


def test_at_most_the_tests_of_the_policy_are_sent_and_the_run_continues(scene, federation):
    federation.overrides = ["validation_args.per_client=true", "comm_args.send_measures=true"]
    tests = [(0, 1.0, Kind.TEST), (0, 1.0, Kind.TEST), (0, 0.0, Kind.TEST), (1, 1.0, Kind.TEST), (0, 1.0)]
    server, process = scene({"max_answers_per_round": 1}, tests)
    first, again, other, later = server.tests
    assert first.keys() == {"accuracy", "balanced_accuracy"}
    assert first == again == later
    assert other == {}
    assert len(server.uploads) == 1
    line = "round 1: the test result is not sent: "
    assert f"{line}{federation.folder / 'one.yaml'}: policy.max_answers_per_round: 1 does not allow" in process.text
    account = json.loads((federation.folder / "silo-1" / "account.json").read_text())["runs"]
    assert {round: len(given) for round, given in account["a" * 16].items()} == {"0 test": 1, "1 test": 1, "0": 1}


def test_a_silo_joins_the_server_of_its_fingerprint_and_no_other(scene, federation, tmp_path):
    folder = tmp_path / "certs"
    certs.new(folder, 3)
    federation.overrides = [f"comm_args.certs={folder}"]
    files = certs.read(folder, "server")
    right = fingerprint(folder, "server")
    server, process = scene({"server_fingerprint": right}, [(0, 1.0)], tls=files)
    assert len(server.uploads) == 1, process.text
    (connected,) = audited(federation.folder / "silo-1", "connected")
    assert connected["fingerprint"] == right
    # another certificate of the same authority
    for name in ("server.pem", "server.key"):
        (folder / name).unlink()
    certs.new(folder, 3, add=True)
    other = fingerprint(folder, "server")
    server, process = scene({"server_fingerprint": right}, tls=certs.read(folder, "server"), code=1)
    line = f"{right} does not allow a certificate with {other}"
    said = refusal(federation, "server_fingerprint", line).replace("which the server asks for", "which the server has")
    assert process.text.endswith(said)
    assert server.kinds == []


def test_a_silo_stops_answering_when_its_budget_is_spent(scene, federation):
    federation.overrides = ["method_args.method=fedrs", *NOISE, "privacy_args.budget={epsilon: 4, delta: 1e-5}"]
    # the same question is the same answer; other weights, other rounds and other runs spend again
    server, process = scene({}, [(0, 1.0), (0, 1.0)])
    first, again = server.uploads
    assert all(torch.equal(first[name], again[name]) for name in first)
    server, _ = scene({}, [(0, 1.0)])  # after a restart
    assert all(torch.equal(first[name], server.uploads[0][name]) for name in first)
    server, process = scene({}, [(0, 1.0), (0, 1.001), (1, 1.0)], run="b" * 16, code=1)
    for other in server.uploads:
        assert not any(torch.equal(first[name], other[name]) for name in first)
    lines = ledger_lines(federation)
    assert [(line["run"][0], line["round"], line["answered"][0]["silo"]) for line in lines] == [
        ("a", 0, 2.0),
        ("b", 0, 2.0),
        ("b", 0, 2.0),
    ]
    spent = [line["epsilon"]["silo"] for line in lines]
    assert spent == sorted(spent)
    line = (
        f"privacy_args.budget: epsilon 4 at delta 1e-05 does not allow an answer to round 2: {spent[-1]:.3g} is "
        "spent, and this answer would increase it to "
    )
    assert server.failed == "privacy_args.budget does not allow an answer to round 2"
    assert process.text.splitlines()[-1].startswith(f"error: {line}")
    # two answers to one round do not share their noise: less the change of the model, they would be as good as none
    trained = [name for name in first if name.startswith("model/") and name.endswith("weight")]
    start = server.session.start
    for name in trained:
        plain = start[name.removeprefix("model/")]
        assert ((other[name] - 1.001 * plain) - (first[name] - plain)).std() > 4  # noise of 4 sqrt(2)


FAILING = """
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.methods.fedrs import FedRS
from fl_labelskew_plugins.runtimes.silo import client

LOST = []
client.works = lambda device: not LOST
begin = Turn.__init__

def refuse_if_lost(self, trainer, *args, **kwargs):
    if trainer.model in LOST:
        raise RuntimeError("CUDA error: device-side assert triggered")
    begin(self, trainer, *args, **kwargs)

Turn.__init__ = refuse_if_lost

class Failing(FedRS):
    def loss(self, batch, client):
        if client.round == 1:
            raise ValueError(f"sample {batch.inputs[0, 0, 0, 0]}")
        if client.round == 4:
            LOST.append(client.model)
            raise RuntimeError("CUDA error: device-side assert triggered")
        terms = super().loss(batch, client)
        if client.round == 2:
            terms["more"] = terms["cross_entropy"].detach() * float("nan")
        return terms
"""


def test_with_noise_on_uploads_a_failed_training_looks_like_another(scene, federation, plugin):
    """A server can make a model with which training fails, or the update is not finite, only with a known sample.

    After an error of round 5, the process cannot use the GPU in later rounds, or to draw noise.
    """
    plugin(FAILING, "Failing")
    federation.overrides = ["method_args.method=acme", *NOISE, "train_args.comm_round=6"]
    server, process = scene({}, [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1e37), (4, 1.0), (5, 1.0)])
    assert server.failed is None
    for upload in server.uploads:
        assert list(upload) == list(server.uploads[0])  # the server chose another order
        assert all(value.isfinite().all() for value in upload.values())
    start = server.session.start
    for round in (1, 4, 5):
        upload = server.uploads[round]
        moved = torch.cat([(upload[f"model/{name}"] - value).flatten() for name, value in start.items()])
        assert 3.5 < float(moved.std()) < 4.5
    said = re.findall(
        r"failed: (.*); this silo uploads the weights of the server with noise in this round", process.text
    )
    assert len(said) == 5
    assert said[0].strip().startswith("Failing.loss (failing) raised ValueError: sample ")
    assert said[1].strip().startswith("round 3: client 0: loss term more is nan")
    assert said[2].strip().startswith("round 4: ")
    assert process.text.count("has failed; this silo trains again after a restart") == 1
    assert [len(line["answered"]) for line in ledger_lines(federation)] == [1] * 6


LDP = ["enable_dp=true", "dp_solution_type=ldp", "epsilon=1", "delta=0.1", "sensitivity=10"]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_uploads_with_noise_of_the_host_are_rounded(mechanism, scene, federation):
    """The low bits of floating-point noise show whether a silo has trained."""
    federation.host = "fedml"
    federation.overrides = [f"dp_args.{key}" for key in (*LDP, f"mechanism_type={mechanism}")]
    server, _ = scene({}, [(0, 0.0)])
    scale = {"laplace": 10, "gaussian": math.sqrt(2 * math.log(1.25 / 0.1)) * 10}[mechanism]
    grid = 2.0 ** (math.floor(math.log2(scale)) - 10)
    values = torch.cat([value.double().flatten() for value in server.uploads[0].values()])
    assert values.abs().mean() > 1
    assert torch.equal(values, (values / grid).round() * grid)


def test_the_last_upload_with_noise_is_sent_again_without_training(scene, federation):
    """Another number of threads would give weights with other last digits, and their difference would be exact."""
    text = federation.recipe.read_text().replace("{model: mlp, hidden: [16]}", "{model: fecnn}")
    federation.recipe.write_text(text.replace("device_args: {threads: 1}\n", ""))
    noise = ["method_args.method=fedrs", "method_args.upload_clip=1", "method_args.upload_sigma=5"]
    uploads = []
    for threads in (1, 2):
        federation.overrides = [*noise, "train_args.epochs=1", f"device_args.threads={threads}"]
        server, _ = scene({"max_answers_per_round": 1}, [(0, 1.0)])
        uploads.append(torch.cat([value.flatten() for value in server.uploads[0].values()]))
    assert torch.equal(*uploads)
    assert len(ledger_lines(federation)) == 1


SOMETIMES = """
import pathlib
from fl_labelskew_plugins.methods.fedrs import FedRS

class Sometimes(FedRS):
    def loss(self, batch, client):
        file = pathlib.Path(__file__).with_name("fails")
        if file.exists():
            file.unlink()
            raise OSError("a disk is away for a moment")
        return super().loss(batch, client)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_repeated_request_gets_the_same_upload_or_other_noise(fails, scene, federation, plugin):
    """A server cannot see whether the first training failed: an earlier answer is always given again with other noise.

    The difference of an answer with and one without training, and the same noise, would be the exact update.
    """
    plugin(SOMETIMES, "Sometimes")
    federation.overrides = ["method_args.method=acme", *NOISE]
    if fails:
        (federation.folder / "fails").write_text("now")
    server, process = scene({}, [(0, 1.0), (0, 1.0)])
    assert ("a disk is away" in process.text) == fails, process.text
    first, again = server.uploads
    assert all(torch.equal(first[name], again[name]) for name in first)
    server, process = scene({}, [(0, 1.0), (0, 1.001), (0, 1.0)])  # after a restart
    same, _, later = server.uploads
    assert all(torch.equal(first[name], same[name]) for name in first)
    difference = torch.cat([(later[name] - first[name]).flatten() for name in first])
    assert 5 < difference.std() < 6.5  # 4 times the square root of 2
    assert (
        "round 1: the server repeats an earlier request; policy and privacy budget count the new answer" in process.text
    )
    assert len(ledger_lines(federation)) == 3


def test_a_policy_refuses_an_earlier_request_whether_its_training_failed_or_not(scene, federation, plugin):
    plugin(SOMETIMES, "Sometimes")
    federation.overrides = ["method_args.method=acme", *NOISE]
    said = []
    for fails in (False, True):
        if fails:
            (federation.folder / "fails").write_text("now")
        server, process = scene({"max_answers_per_round": 2}, [(0, 1.0), (0, 1.001), (0, 1.0)], code=1)
        said.append((len(server.uploads), server.failed))
        shutil.rmtree(federation.folder / "silo-1")
    assert said[0] == said[1], process.text
    assert said[0][0] == 2
    assert "policy.max_answers_per_round: 2 does not allow another answer to round 1" in said[0][1]


def ledger_lines(federation):
    return [json.loads(line) for line in (federation.folder / "silo-1" / "privacy.jsonl").read_text().splitlines()]


def test_exact_data_in_hello_and_test_results_are_in_the_ledger(scene, federation):
    """A server that only waits for HELLO, or that only asks for tests, learns something, too."""
    measures = ["validation_args.per_client=true", "comm_args.send_measures=true", "train_args.proxy_aggregation=class"]
    federation.overrides = ["method_args.method=fedrs", *NOISE, *measures]
    scene({}, [(0, 1.0, Kind.TEST), (0, 1.0, Kind.TEST)])
    hello, test = ledger_lines(federation)
    said = [(line["run"], line["round"], [part["on"] for part in line["answered"]]) for line in (hello, test)]
    first, then = ("hello", -1, ["train_args.proxy_aggregation class"]), ("a" * 16, 0, ["comm_args.send_measures true"])
    assert said == [first, then]
    assert hello["epsilon"] == test["epsilon"] == {"silo": None, "claim": None}
