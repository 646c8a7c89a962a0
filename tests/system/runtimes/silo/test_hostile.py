"""Malicious silos and strangers: the fate of their messages, and that the federation finishes unharmed."""

import contextlib
import pickle
import re
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from federations import FACTS, Echo, Hostile, finished, left_out, same, wait_until
from strangers import chunks, files, raw

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runtimes.silo import certs, members
from fl_labelskew_plugins.runtimes.transport import Kind, Message
from fl_labelskew_plugins.runtimes.wire import Header


@pytest.fixture
def federation(federation):
    federation.host = "none"  # FedML neither reads nor checks messages
    return federation


class FakeSilo(Echo):
    """Silo 3: a test defines its answer to each request for training."""

    def __init__(self, address, answers, *, opening=None, **options):
        self.opening = opening
        self.answers, self.verdicts, self.finish = list(answers), [], None
        super().__init__(address, 3, **options)

    def receive_message(self, kind, arrived):
        if kind == Kind.WELCOME:
            if self.opening is not None:
                self.transport.send_message(Message(Kind.OPENING, 3, 0, tensors=self.opening))
        elif kind == Kind.TRAIN and self.answers:
            answer = self.answers.pop(0)
            tensors, meta = answer(dict(arrived.tensors))
            self.transport.send_message(Message(Kind.UPLOAD, 3, 0, round=arrived.round, meta=meta, tensors=tensors))
        elif kind == Kind.VERDICT:
            self.verdicts.append(arrived.meta.get("reason", "taken"))
        elif kind == Kind.FINISH:
            self.finish = arrived.meta
            self.leave()


def against(federation, answers, *overrides, **options):
    """Run a server and two silos against a FakeSilo with these answers; returns the server's process and the fake."""
    federation.overrides = list(overrides)
    server, silos = federation.server(), federation.silos(1, 2)
    fake = FakeSilo(federation.address, answers, **options)
    finished(server, *silos)
    fake.thread.join(20)
    return server, fake


def model(tensors):
    return {k: v.clone() for k, v in tensors.items() if k.startswith("model/")}


def changed(key, value):
    def answer(tensors):
        return {**model(tensors), key: value}, {}

    return answer


def upload_of(**meta):
    return lambda tensors: (model(tensors), meta)


def with_contributions(**sent):
    return lambda tensors: (model(tensors) | {f"contribution/{name}": tensor for name, tensor in sent.items()}, {})


BIAS = "model/classifier.bias"
BAD = {
    "classifier.bias is not finite": changed(BIAS, torch.full((10,), float("nan"))),
    "classifier.weight is not finite": changed("model/classifier.weight", torch.full((10, 16), -float("inf"))),
    "expected (10,)": changed(BIAS, torch.zeros(11)),
    "torch.float64": changed(BIAS, torch.zeros(10).double()),
    "and the model differ in the tensors backdoor": changed("model/backdoor", torch.zeros(3)),
    "and the model differ in the tensors classifier.bias": lambda tensors: (
        {name: tensor for name, tensor in model(tensors).items() if name != BIAS},
        {},
    ),
    "neither weights nor contributions": changed("elsewhere", torch.zeros(3)),
    "does not announce: features": with_contributions(features=torch.zeros(3)),
    "private state": changed("state/p", torch.zeros(3)),
    "loss terms that are not a mapping": upload_of(loss_terms="a" * 1000),
    "loss terms with a name that is not 1 to 40 letters": upload_of(loss_terms={"$\\frac{$": 1.0}),
    "not a pair of whole numbers": upload_of(personalised=[1e308, 1]),
    "out of range": upload_of(personalised=[5, 4]),
}


def test_a_silo_with_invalid_uploads_is_excluded_from_these_rounds_only(federation):
    new_names = [upload_of(loss_terms={f"{r}.{k}": 1.0 for k in range(15)}) for r in range(3)]
    answers = [*BAD.values(), changed(BIAS, torch.zeros(10)), *new_names]
    server, fake = against(federation, answers, f"train_args.comm_round={len(answers)}", "comm_args.send_measures=true")
    assert fake.finish == {"done": True, "rounds": len(answers), "state_round": len(answers) - 1}
    lines = federation.lines()
    for round, (words, verdict, line) in enumerate(zip(BAD, fake.verdicts, lines, strict=False)):
        assert words in verdict
        assert line["left_out"] == [2]
        assert f"round {round + 1}: upload of silo 3 refused" in server.text
    assert fake.verdicts[len(BAD) :] == ["taken"] * 4
    assert [line["clients"] for line in lines[len(BAD) :]] == [[0, 1, 2]] * 4
    assert all(torch.isfinite(value).all() for value in federation.weights().values())
    # new names of loss terms do not fill the metrics
    assert all("cross_entropy" in line["loss_terms"] for line in lines)
    assert len(set().union(*(line["loss_terms"] for line in lines))) == 21


def huge(tensors):
    return {k: torch.full_like(v, 3.4e38) if v.is_floating_point() else v for k, v in model(tensors).items()}, {}


def unanswered(tensors):
    """Messages of an excluded silo do not count."""
    return {}, {}


def test_finite_uploads_out_of_all_proportion_are_excluded_from_the_mean(make_federation):
    """As if that silo had not answered in those rounds."""
    weights = []
    for name, bad in (("poisoned", huge), ("left_out", unanswered)):
        federation = make_federation(name)
        federation.overrides = ["train_args.comm_round=4"]
        server, silos = federation.server(), federation.silos(1, 2)
        fake = FakeSilo(federation.address, [bad, changed(BIAS, torch.full((10,), 20.0)), bad, bad])
        finished(server, *silos)
        fake.thread.join(20)
        assert left_out(federation) == [[2], [], [2], [2]]
        weights.append(federation.weights())
        if name == "poisoned":
            for round in (1, 3, 4):
                assert f"round {round}: upload of silo 3 refused: the norm of its update is " in server.text
            refusal = r"is \S+, more than 1000 times the median \S+ \(comm_args\.max_update_ratio\)"
            assert re.search(refusal, server.text)
            assert "a norm of the upload is more than 1000 times the median" in fake.verdicts[1]
        named = r"round 2: silo 3: the norm of its update is \S+; the median of the round is \S+; if the accuracy falls"
        assert len(re.findall(named, server.text)) == 1
    same(*weights)


def test_a_run_that_is_lost_goes_back_to_an_earlier_round_without_the_silo(make_federation):
    """And ends with the weights of a run that had stopped there, of silos with private states."""
    poisoned, stopped = make_federation("poisoned"), make_federation("stopped")
    for federation in (poisoned, stopped):
        more = ["tracking_args.checkpoint_every=1", "comm_args.max_update_ratio=null"]
        federation.overrides = ["train_args.comm_round=5", "method_args.method=map", *more]
        federation.environment = {"FL_LABELSKEW_PAUSE": "2 inf"} if federation is stopped else {}
        server, silos = federation.server(), federation.silos(1, 2)
        fake = FakeSilo(federation.address, [changed(BIAS, torch.zeros(10))] * 2 + [huge] * 2)
        assert server.wait() == (federation is poisoned), server.text
        fake.transport.stop_receive_message()
        members.exclude(federation.run_dir, 3)
        federation.environment = {}
        if federation is stopped:
            server, silos = federation.server(resume=True), federation.silos(1, 2)
        else:
            assert "is not finite, training diverged" in server.text
            server = federation.server("--from-round", 2, resume=True)
            server.says("back at the end of round 2; data of later rounds were moved to")
        finished(server, *silos)
        assert all("is not in" not in process.text for process in (server, *silos))  # a state that it has lost
    assert left_out(poisoned) == [[], [], [2], [2], [2]]
    assert len((poisoned.run_dir / "abandoned-1" / "metrics.jsonl").read_text().splitlines()) == 1
    same(poisoned.weights(), stopped.weights())
    states = [sorted(f.glob("silo-[12]/*/personalised.safetensors")) for f in (poisoned.folder, stopped.folder)]
    assert [file.read_bytes() for file in states[0]] == [file.read_bytes() for file in states[1]]
    assert len(states[0]) == 2


def test_with_too_few_silos_the_server_ends_at_once_and_resumes_without_the_silo(federation):
    federation.overrides = ["comm_args.min_clients=3", "comm_args.quorum_timeout_s=3600"]
    server, silos = federation.server(), federation.silos(1, 2)
    fake = FakeSilo(federation.address, [huge])
    assert server.wait() == 1
    said = "round 1: 2 of at least 3 uploads remain after refusals (comm_args.min_clients, max_update_ratio"
    assert said in server.text
    assert "Traceback" not in server.text
    fake.transport.stop_receive_message()
    federation.overrides = ["comm_args.min_clients=2"]
    members.exclude(federation.run_dir, 3)
    server = federation.server(resume=True)
    finished(server, *silos)
    assert "silo 3 is excluded" in server.text
    assert left_out(federation) == [[2]] * 3


def class_sums(value, count, dtype=None):
    return with_contributions(sums=torch.full((10, 16), value, dtype=dtype), counts=torch.full((10,), count))


def test_prototypes_and_counts_out_of_all_proportion_are_refused_too(federation):
    answers = [class_sums(3.4e38, 40), class_sums(1.0, 2**60), class_sums(1.0, -1.0)]
    server, _ = against(federation, answers, "method_args.method=fedmr", "train_args.comm_round=3")
    assert "round 1: upload of silo 3 refused: the norm of its sums is " in server.text
    assert "round 2: upload of silo 3 refused: the sum of counts is above 1000000000 (comm_args" in server.text
    assert "upload of silo 3 refused: round 3: upload of client 2: counts has negative values" in server.text
    assert left_out(federation) == [[2], [2], [2]]


def test_class_sums_that_only_one_silo_sends_are_bounded(federation):
    """Such sums of 1e300 made the training of all others fail, also after this silo was excluded."""
    federation.overrides = ["method_args.method=fedmr", "train_args.comm_round=2"]
    server = federation.server()
    federation.overrides += ["comm_args.send_contributions=false"]
    silos = federation.silos(1, 2)
    FakeSilo(federation.address, [class_sums(1e300, 1, torch.float64)] * 2)
    finished(server, *silos)
    assert "the norm of its sums is inf, more than 1000 times 1000, the assumed median" in server.text
    assert left_out(federation) == [[2], [2]]


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        # the sum would pass the limit of samples, and leave no other class in the prior
        ({"smoothed": [1e300, -1e300, *[1.0] * 8]}, "smoothed has negative values"),
        ({}, "its opening lacks smoothed"),
    ],
)
def test_an_opening_with_negative_counts_or_without_tensors_is_refused(opening, reason, federation):
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in opening.items()}
    overrides = ["method_args.method=fedshift", "train_args.comm_round=1", "comm_args.quorum_timeout_s=5"]
    _, fake = against(federation, [], *overrides, opening=tensors)
    assert fake.finish["reason"] == reason
    assert left_out(federation) == [[2]]


def test_a_silo_with_one_sample_does_not_spend_the_budgets_of_others(federation):
    """The claim of FedRS depends on the smallest client; the ledger of a silo uses the silo's own number of samples."""
    noise = ["method_args.method=fedrs", "method_args.upload_clip=5", "method_args.upload_sigma=0.5"]
    budget = ["privacy_args.level=claim", "privacy_args.budget={epsilon: 8, delta: 0.001}"]
    against(federation, [upload_of()] * 2, *noise, *budget, "train_args.comm_round=2", facts=FACTS | {"samples": 1})
    line = read_lines(federation.folder / "silo-1" / "privacy.jsonl")[-1]
    assert line["epsilon"]["claim"] < 1


class SendsWhenTurnedAway(FakeSilo):
    """Sends its opening although the server has turned it away."""

    def receive_message(self, kind, arrived):
        if kind == Kind.FINISH and self.finish is None:
            self.finish = arrived.meta
            self.transport.send_message(Message(Kind.OPENING, 3, 0, tensors=self.opening))


def test_an_opening_of_a_silo_that_was_turned_away_counts_nothing(federation):
    federation.overrides = ["method_args.method=fedshift", "train_args.comm_round=3", "comm_args.quorum_timeout_s=5"]
    federation.overrides += ["train_args.epochs=20"]
    server, silos = federation.server(), federation.silos(1, 2)
    silos[0].says("round 1: trained")
    silos[0].kill(signal.SIGSTOP)  # so that the run is not over before all this is
    smoothed = torch.tensor([1e9, *[0.0] * 9], dtype=torch.float64)
    fake = SendsWhenTurnedAway(
        federation.address, [], opening={"smoothed": smoothed}, facts=FACTS | {"samples": 10**10}
    )
    wait_until(lambda: fake.finish)
    silos[0].kill(signal.SIGCONT)
    finished(server, *silos)
    assert "at most 1000000000 are allowed" in fake.finish["reason"]
    assert [line["opening_left_out"] for line in federation.lines()] == [[2]] * 3


def test_unfit_silos_are_turned_away_and_a_dominant_one_is_reported(federation):
    federation.overrides = ["train_args.comm_round=2", "comm_args.max_samples=100000"]
    server, silos = federation.server(), federation.silos(1, 2)
    for change, why in (
        (
            {"samples": 10**12},
            "it reports 1000000000000 training samples; at most 100000 are allowed (comm_args.max_",
        ),
        (
            {"num_classes": 11},
            "its data have 11 classes and samples of shape (1, 8, 8); expected: 10 classes and samples",
        ),
    ):
        fake = FakeSilo(federation.address, [], facts=FACTS | change)
        fake.thread.join(30)
        assert fake.finish["reason"].startswith(why)
        assert not fake.finish["done"]
        server.says(f"silo 3 turned away: {why}")
    FakeSilo(federation.address, [upload_of()] * 2, facts=FACTS | {"samples": 10**4})
    finished(server, *silos)
    share, total = "90.82 %", "10000 of all 11011 training samples"
    assert f"warning: silo 3 has {share} of the weight of round 1: this silo reports {total}\n" in server.text
    assert server.text.count("warning: silo 3") == 1


def test_a_silo_with_most_of_the_classifiers_weight_is_reported(federation):
    """FedRS weights silos equally, but the classifier's rows by class counts."""
    overrides = ["method_args.method=fedrs", "train_args.proxy_aggregation=class", "train_args.comm_round=1"]
    server, _ = against(federation, [upload_of()], *overrides, facts=FACTS | {"samples": 10**5, "counts": [10**4] * 10})
    assert "warning: silo 3 has 99 % of the weight of round 1: this silo reports 100000 of all 101011" in server.text


def test_a_silo_that_makes_the_weights_of_all_others_0_is_reported(federation):
    """By a claim of most samples, below the limit of the other warning, and an opening of 0."""
    opening = {"discrepancy": torch.tensor(0.0, dtype=torch.float64)}
    # a weight near 0 counts as 0: its inverse would not be finite
    answers = [changed("contribution/weight", torch.tensor(weight)) for weight in (1.0, 1e-30)]
    overrides = ["method_args.method=feddisco", "train_args.comm_round=2", "comm_args.quorum_timeout_s=5"]
    server, _ = against(federation, answers, *overrides, opening=opening, facts=FACTS | {"samples": 8000})
    what = "silo 3 has 100 % of the weight of round 1: this silo declares the weight 1, and all silos together 1"
    assert f"warning: {what}\n" in server.text
    assert "warning: round 2: all clients declare the weight 0, so the model stays the same\n" in server.text


class LeavesBeforeTraining(FakeSilo):
    """Sends its opening, if any, and disconnects when it is asked to train."""

    def receive_message(self, kind, arrived):
        if kind == Kind.TRAIN or (kind == Kind.WELCOME and self.opening is None):
            self.leave()
        else:
            super().receive_message(kind, arrived)


def test_a_silo_that_is_turned_away_after_its_opening_no_longer_counts(federation):
    federation.overrides = ["method_args.method=fedshift", "train_args.comm_round=9", "train_args.epochs=40"]
    server = federation.server()
    server.says("listening on")
    smoothed = torch.tensor([1e3, *[0.0] * 9], dtype=torch.float64)
    LeavesBeforeTraining(federation.address, [], opening={"smoothed": smoothed})
    server.says("silo 3 has connected")
    silos = federation.silos(1, 2)
    server.says("silo 3 has disconnected")
    fake = FakeSilo(federation.address, [], facts={})
    finished(server, *silos)
    assert fake.finish["reason"] == "its number of samples is not a whole number above 0"
    left = [line.get("opening_left_out") for line in federation.lines()]
    assert (left[0], left[-1]) == (None, [2])


@pytest.mark.parametrize("opens", [True, False])
def test_the_samples_of_an_excluded_silo_do_not_count_in_declared_weights(opens, federation):
    rounds = "train_args.comm_round=20"
    federation.overrides = ["method_args.method=feddisco", rounds, "comm_args.reconnect_s=1", "comm_args.min_clients=2"]
    server = federation.server()
    server.says("listening on")
    opening = {"discrepancy": torch.tensor(0.0, dtype=torch.float64)} if opens else None
    LeavesBeforeTraining(federation.address, [], facts=FACTS | {"samples": 10**9}, opening=opening)
    server.says("silo 3 has connected")
    silos = federation.silos(1, 2)
    many = "reports 1000000000 of all 1000001011 training samples, and silos compute their weights from these"
    server.says(f"silo 3 {many}")
    server.says("warning: round 2: all clients declare the weight 0")
    members.exclude(federation.run_dir, 3)
    finished(server, *silos)
    assert "round 20: all clients declare the weight 0" not in server.text
    assert federation.lines()[-1]["accuracy"] > federation.lines()[1]["accuracy"]


def test_a_missing_silo_that_keeps_the_old_model_causes_a_warning(federation):
    """FedShift weighs uploads by the samples of all silos; the old model gets the weight of missing silos."""
    federation.overrides = ["method_args.method=fedshift", "train_args.comm_round=2", "comm_args.reconnect_s=1"]
    server = federation.server()
    server.says("listening on")
    opening = {"smoothed": torch.full((10,), 1e4, dtype=torch.float64)}
    LeavesBeforeTraining(federation.address, [], facts=FACTS | {"samples": 10**5}, opening=opening)
    server.says("silo 3 has connected")
    finished(server, *federation.silos(1, 2))
    warning = "warning: 99 % of round 2's model is the old one without silo 3: this silo reports 100000 of all 101011 "
    assert warning + "training samples\n" in server.text
    assert "silo 3 did not reconnect within 1 s; skipped until it sends a message" in server.text
    assert [line["clients"] for line in federation.lines()] == [[0, 1]] * 2


def test_many_bad_messages_are_one_counted_line(federation):
    federation.overrides = ["train_args.comm_round=1", "comm_args.reconnect_s=1", "comm_args.quorum_timeout_s=6"]
    server = federation.server()
    server.says("listening on")
    fake = FakeSilo(federation.address, [])
    server.says("silo 3 has connected")
    for number in range(300):
        while (outbox := fake.transport._outbox) is None or outbox._queue.qsize():
            time.sleep(0.001)
        fake.transport.send_message(Message(Kind.FAILED, 3, 0, meta={"reason": f"{number} reasons"}))
    finished(server, *federation.silos(1, 2))
    first, last = [line for line in server.text.splitlines() if "silo 3 stopped: " in line]
    assert first == "silo 3 stopped: 0 reasons"
    assert last.startswith("silo 3 stopped: 299 reasons (299 more within ")


def test_unrequested_messages_are_dropped(federation):
    federation.overrides = ["train_args.comm_round=1", "method_args.method=fedshift", "comm_args.round_deadline_s=4"]
    server = federation.server()
    server.says("listening on")
    fake = FakeSilo(federation.address, [])
    server.says("silo 3 has connected")  # the run has not begun
    for kind, round, tensors in (
        (Kind.OPENING, -1, {"smoothed": torch.full((3,), -1.0)}),
        (Kind.UPLOAD, -1, {"model/x": torch.zeros(2)}),
        (Kind.UPLOAD, 0, {}),
    ):
        fake.transport.send_message(Message(kind, 3, 0, round=round, meta={"loss_terms": 3}, tensors=tensors))
    silos = federation.silos(1, 2)
    finished(server, *silos)
    assert federation.lines()[0]["left_out"] == [2]


def test_strangers_do_no_harm_to_a_federation_with_certificates(federation, sp_weights, tmp_path, certificates, others):
    proof = tmp_path / "executed"
    federation.overrides = [f"comm_args.certs={certificates}"]
    server, silos = federation.server(), federation.silos()
    server.says("silo 3 has connected")
    silos[2].kill(signal.SIGSTOP)  # so that the run is not over before all this is
    silos[0].says("round 1: trained")
    one = certs.read(certificates, "silo-1")
    pickled = pickle.dumps(Hostile(proof))
    large = Header(int(Kind.HELLO), 1, 0, -1, 3 * 2**30).pack()
    large_json = Header(int(Kind.HELLO), 1, 0, -1, 16).pack() + struct.pack("<QQ", 3 * 2**30, 0)
    for sent, tls, said in (
        (chunks(Kind.HELLO, 3, meta=FACTS), None, "UNAVAILABLE"),
        (chunks(Kind.HELLO, 3, meta=FACTS), files(others, "silo-3", certificates), "UNAVAILABLE"),
        (chunks(Kind.HELLO, 3, meta=FACTS), one, "PERMISSION_DENIED: claims to be silo 3"),
        ([large], one, "sent HELLO of 3221225472 bytes"),
        ([large_json], one, "sent a JSON header of 3221225472 bytes"),
        ([b"\xff" * 5000], one, "sent bytes that are not a message"),
        ([pickled], one, "INVALID_ARGUMENT"),
    ):
        assert said in ": ".join(raw(federation.address, sent, tls=tls))
    assert raw(federation.address, [pickled], tls=one, path="/gRPCCommManager/sendMessage")[0] == "UNIMPLEMENTED"

    def sends(bytes_):
        host, port = federation.address.split(":")
        with socket.create_connection((host, int(port)), 10) as stranger, contextlib.suppress(OSError):
            stranger.sendall(bytes_)
            stranger.settimeout(20)
            while stranger.recv(65536):
                pass

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(sends, (b"\x80\x04\x95" + pickled, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100_000)))
    silos[2].kill(signal.SIGCONT)
    finished(server, *silos)
    assert not proof.exists()
    assert "Traceback" not in server.text
    assert all("left_out" not in line for line in federation.lines())
    same(federation.weights(), sp_weights())
