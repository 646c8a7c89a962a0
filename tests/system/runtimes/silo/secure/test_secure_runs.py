"""Secure aggregation by real processes with certificates: the same bits as in one process, losses, and cheating."""

import contextlib
import json
import re
import shutil
import signal
from datetime import datetime

import pytest
import torch
from cheating import ROUND
from federations import audited, finished, left_out, same, wait_until
from safetensors.torch import load_file

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runtimes.silo import facts
from fl_labelskew_plugins.runtimes.silo.secure import wire
from fl_labelskew_plugins.runtimes.silo.secure.attempt import number_of_test
from fl_labelskew_plugins.runtimes.transport import Kind

SECURE = "comm_args.secure_aggregation=true"
FOUR = [SECURE, "comm_args.reconnect_s=1", "comm_args.quorum_timeout_s=60"]
FOUR += ["train_args.client_num_in_total=4", "method_args.method=fedshift"]
NOISE = ["method_args.method=fedavg", "privacy_args.noise_multiplier=0.5", "privacy_args.clip=1"]
NOISE += ["comm_args.answer_after_s=0.2"]
TWO_ROUNDS = ["train_args.comm_round=2"]
NOISY = [*FOUR, *NOISE, "comm_args.secure_threshold=3"]
"""With noise, a sum needs three of the four silos."""


@pytest.fixture
def secure(federation, certificates):
    """The federation, with these overrides and certificates."""
    federation.host = "none"

    def prepare(*overrides):
        federation.overrides = [SECURE, *overrides, f"comm_args.certs={certificates}"]
        return federation

    return prepare


def charged(federation, rank, key="round"):
    """Rounds that a silo's ledger was charged for; -1: the opening."""
    return [line[key] for line in read_lines(federation.folder / f"silo-{rank}" / "privacy.jsonl")]


def killed(*processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # it is about to end by itself
            process.kill()
        process.wait()


@pytest.mark.parametrize("method", ["fedshift+fedmr", "map train_args.federated_optimizer=FedDyn"])
def test_the_same_bits_as_in_one_process(secure, sp_weights, method):
    overrides = f"method_args.method={method}".split()
    federation = secure(*overrides)
    federation.host = "fedml"
    processes = [federation.server(), *federation.silos(1, 2), federation.silo(3, cheat="prints_its_openings")]
    finished(*processes)
    assert processes[3].text.count("counts its samples") == 1
    warning = "ca.key: the authority's key; its readers can create certificates of other silos; move it to"
    assert all(warning in process.text for process in processes)
    same(federation.weights(), sp_weights(SECURE, *overrides))
    sums = audited(federation.run_dir, "sum")
    assert [(line.get("round"), line["silos"], line["lost"]) for line in sums] == [
        (round, [1, 2, 3], []) for round in (None, 0, 1, 2)
    ]
    assert [line.get("round") for line in audited(federation.folder / "silo-2", "revealed")] == [None, 0, 1, 2]
    kinds = {line["kind"] for line in audited(federation.run_dir, "received")}
    assert kinds == {"HELLO", "UPLOAD", "FINISH", "KEYS", "SHARES", "CHECKED", "MASKED", "INCLUDED", "REVEALED"}
    sizes = [line["bytes"] for line in audited(federation.run_dir, "received") if line["kind"] == "UPLOAD"]
    assert max(sizes) < 200  # an upload says that it is ready; what it holds is in the masked vector
    assert "sizes" not in (federation.run_dir / "opened.json").read_text()


def test_silos_choose_noise_on_their_class_counts(secure):
    """They agree on the number of silos in the opening sum all the same."""
    federation = secure(*FOUR, *NOISE[1:], *TWO_ROUNDS, "comm_args.secure_threshold=3")
    noise = {"north": 4, "south": 4, "east": 2, "west": 0}
    federation.give_files(**{name: f"method_args: {{count_noise: {scale}}}" for name, scale in noise.items()})
    finished(federation.server(), *federation.silos(1, 2, 3, 4))
    assert left_out(federation) == [[], []]


def test_silos_killed_at_a_step(secure):
    """The round continues with the others; if its vector has arrived, the silo is in the sum."""
    federation = secure(*NOISY, "train_args.client_num_in_total=5", "train_args.comm_round=4")
    server, silos = federation.server(), federation.silos(1, 2, 3)
    victims = [federation.silo(4, cheat="dies_at_reveal@2"), federation.silo(5, cheat="dies_at_mask")]
    finished(server, *silos)
    assert [victim.wait() for victim in victims] == [-signal.SIGKILL] * 2
    assert left_out(federation) == [[], [4], [4], [3, 4]]
    entries = [line for line in audited(federation.run_dir, "sum") if line.get("round") in (1, 2)]
    assert [(entry["silos"], entry["lost"]) for entry in entries] == [([1, 2, 3, 4], [5]), ([1, 2, 3, 4], [])]
    line = "round 2: lost after the masks were shared: silo 5; the sum includes silos 1, 2, 3, 4"
    assert line in server.text
    assert server.text.count("lost after the masks were shared") == 1


def test_a_round_waits_for_a_killed_silo_if_too_few_remain(secure, sp_weights):
    """Of three silos none can be missed: the round is repeated, though two silos have revealed their shares."""
    federation = secure("comm_args.reconnect_s=1")
    server, silos = federation.server(), [federation.silo(1), federation.silo(2, cheat="claims_many_test_samples")]
    victim = federation.silo(3, cheat="dies_at_reveal")
    assert victim.wait() == -signal.SIGKILL
    line = "2 silos have revealed their shares, but at least 3 are needed; the sum is not opened, and the attempt is"
    server.says(f"{line} repeated")
    finished(federation.silo(3), server, *silos)
    same(federation.weights(), sp_weights(SECURE))
    assert left_out(federation) == [[], [], []]
    assert re.search(r"warning: the silos report 5\d\d\d test samples and only 1438 training samples", server.text)


def test_a_server_killed_and_resumed(secure, sp_weights):
    rounds = ["train_args.comm_round=4"]
    federation = secure(*rounds, "validation_args.per_client=true", "comm_args.send_measures=true")
    server, silos = federation.server(), federation.silos()
    server.says("round 2/4")
    server.kill()
    finished(federation.server(resume=True), *silos)
    same(federation.weights(), sp_weights(SECURE, *rounds))
    assert all(POOLED in line for line in federation.lines())
    (opened,) = (line for line in audited(federation.run_dir, "sum") if "round" not in line)
    assert opened["silos"] == [1, 2, 3]  # once in a run


def test_a_silo_cannot_change_the_opening_sum_after_a_restart(secure):
    """The server stops before the first checkpoint, and continues with the sum of its first process."""
    federation = secure(*FOUR, "comm_args.min_clients=3", "train_args.epochs=20", *TWO_ROUNDS)
    server, silos, bad = federation.server(), federation.silos(1, 2, 3), federation.silo(4)
    server.says("training samples of silos 1, 2, 3, 4 together")
    killed(bad, server)
    opened = (federation.run_dir / "opened.json").read_text()
    federation.silo(4, cheat="claims_one_more_sample_in_a_second_opening")
    finished(federation.server(resume=True), *silos)
    assert (federation.run_dir / "opened.json").read_text() == opened
    assert [len(line["clients"]) >= 3 for line in federation.lines()] == [True, True]


def test_a_silo_that_connects_after_the_opening_sum(secure):
    federation = secure(*NOISY, "comm_args.quorum_timeout_s=4", "train_args.epochs=20")
    server, silos = federation.server(), federation.silos(1, 2, 3)
    server.says("training samples of silos 1, 2, 3 together")
    late = federation.silo(4)
    assert late.wait() == 2
    assert "summed without this silo, and a second sum would reveal this silo's number; begin a new run" in late.text
    finished(server, *silos)


@pytest.mark.parametrize(
    ("cheat", "line"),
    [
        # with 5e11 samples in the opening the changes of all others would count for nothing
        (
            "claims_too_many_samples",
            "test samples of silos 1, 2, 3, 4 together; allowed: 1 to 4000000000 (comm_args.max_samples per silo); beg",
        ),
        ("denies_its_opening", "opening exchange: smoothed is the sum of -1 clients; allowed: 1 to 4; start a new run"),
    ],
)
def test_an_impossible_opening_sum_ends_the_run(cheat, line, secure):
    federation = secure(*FOUR)
    server, _ = federation.server(), federation.silos(1, 2, 3)
    federation.silo(4, cheat=cheat)
    assert server.wait() == 1
    assert line in server.text
    assert "Traceback" not in server.text


PER_CLIENT = [*FOUR, "validation_args.per_client=true"]
POOLED, SAMPLES = "client_accuracy_pooled", "client_test_samples"


def own_tests(federation, rank):
    """Of a silo's own files: accuracy by round; and its number of test samples."""
    (file,) = (federation.folder / f"silo-{rank}").glob("*/metrics.jsonl")
    data = facts.load(recipes.load(federation.recipe, federation.overrides), rank - 1).data
    return {line["round"]: line["accuracy"] for line in read_lines(file) if "accuracy" in line}, len(data.test.y)


def test_accuracy_in_the_sum_equals_that_of_the_silos_files(secure, sp_run):
    federation = secure(*PER_CLIENT, "comm_args.send_measures=true")
    server, silos = federation.server(), federation.silos(1, 2, 3, 4)
    finished(server, *silos)
    accuracies, sizes = zip(*(own_tests(federation, rank) for rank in (1, 2, 3, 4)), strict=True)
    lines = federation.lines()
    for line in lines:
        right = sum(round(own[line["round"]] * size) for own, size in zip(accuracies, sizes, strict=True))
        assert (line[POOLED], line[SAMPLES]) == (right / sum(sizes), sum(sizes))
        assert "client_accuracy" not in line
    one_process = read_lines(sp_run(*PER_CLIENT, "comm_args.send_measures=true") / "metrics.jsonl")
    assert POOLED not in (sp_run(*PER_CLIENT) / "metrics.jsonl").read_text()
    assert [line[POOLED] for line in lines] == [line[POOLED] for line in one_process]
    assert json.loads((federation.run_dir / "summary.json").read_text())[POOLED] == lines[-1][POOLED]
    assert f"{100 * lines[-1][POOLED]:.2f} % of {sum(sizes)} samples together" in server.text
    for silo, own, size in zip(silos, accuracies, sizes, strict=True):
        assert f"on this silo's own {size} test samples: {100 * own[2]:.2f} %" in silo.text
    tests = [(line["round"], line["silos"]) for line in audited(federation.run_dir, "sum") if "of" in line]
    assert tests == [(round, [1, 2, 3, 4]) for round in range(3)]
    received = audited(federation.run_dir, "received")
    masked = {line["round"] for line in received if line["kind"] == "MASKED" and line.get("round", 0) < 0}
    assert masked == {number_of_test(round) for round, _ in tests}
    answers = {line["bytes"] for line in received if line["kind"] == "TESTED"}
    assert len(answers) == 1  # they say nothing


def test_a_round_without_all_silos_of_the_opening_has_no_accuracy(secure):
    """Silos that report nothing have no sample in it; a lost one would be the difference of two sums."""
    federation = secure(*PER_CLIENT, "comm_args.reconnect_s=1")
    reports = ("--set", "comm_args.send_measures=true")
    server, silos = federation.server(), [federation.silo(1, *reports), *federation.silos(2, 3)]
    assert federation.silo(4, *reports, cheat=f"dies_at_advertise@{number_of_test(ROUND)}").wait() == -signal.SIGKILL
    server.says("no accuracy in this round, because its sum must include all silos of the opening exchange")
    finished(federation.silo(4, *reports), server, *silos)
    (own, size), (_, other) = own_tests(federation, 1), own_tests(federation, 4)
    first, second, third = federation.lines()
    assert first[SAMPLES] == third[SAMPLES] == size + other
    assert first[POOLED] * first[SAMPLES] > round(own[0] * size)
    assert POOLED not in second


def test_a_silo_with_a_spent_budget_stops_participating(secure):
    """Noise in the sum is each silo's own, and so is the account of it: one question, one line, one price."""
    federation = secure(*NOISE, "privacy_args.budget={epsilon: 40, delta: 1.0e-5}", "comm_args.reconnect_s=1")
    server, silos = federation.server(), federation.silos()
    for rank, silo in enumerate(silos, 1):
        assert silo.wait() == 1
        assert "privacy_args.budget: epsilon 40 at delta 1e-05 does not allow an answer to round 2: 25.9 " in silo.text
        assert charged(federation, rank) == [-1, 0]
    killed(server)
    assert [line["round"] for line in federation.lines()] == [0]


def test_another_run_has_other_noise_and_is_spent_again(secure):
    """It asks the same first, and may be of other silos: with the same noise the difference would be bare."""
    federation = secure(*NOISE, "train_args.comm_round=1")
    weights = []
    for _ in range(2):
        finished(federation.server(), *federation.silos())
        weights.append(federation.weights())
        federation.run_dir = federation.folder / "another run"
    assert charged(federation, 1) == [-1, 0, 0]
    assert not any(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_another_attempt_has_other_noise_and_is_spent_again(secure):
    """A masked vector that has left is charged, though its sum was not opened; silo 3 dies in the second round."""
    federation = secure(*NOISE, "comm_args.reconnect_s=1")
    server, silos = federation.server(), federation.silos(1, 2)
    victim = federation.silo(3, cheat="dies_at_agree")
    assert victim.wait() == -signal.SIGKILL
    server.says("the sum is not opened, and the attempt is repeated")
    finished(federation.silo(3), server, *silos)
    for rank in (1, 2, 3):
        assert charged(federation, rank) == [-1, 0, 1, 1, 2]
        assert len({*charged(federation, rank, "answer")}) == 5


def test_a_policy_limits_the_masked_vectors_of_a_round(secure):
    """Each has its own noise, so the mean of many would have none."""
    federation = secure(*NOISE, "comm_args.reconnect_s=1")
    federation.give_files(**dict.fromkeys(("one", "two", "three"), "policy: {max_answers_per_round: 1}"))
    _, silos = federation.server(), federation.silos(1, 2)
    victim = federation.silo(3, cheat="dies_at_agree")
    assert victim.wait() == -signal.SIGKILL
    federation.silo(3)
    assert [silo.wait() for silo in silos] == [1, 1]
    line = "policy.max_answers_per_round: 1 does not allow another answer to round 2"
    assert all(line in silo.text for silo in silos)
    assert [charged(federation, rank) for rank in (1, 2)] == [[-1, 0, 1]] * 2


def test_a_sum_of_fewer_than_the_noise_is_made_for_is_not_opened(secure):
    federation = secure(*NOISY, "comm_args.secure_threshold=4")
    server, silos = federation.server(), federation.silos(1, 2, 3)
    victim = federation.silo(4, cheat="dies_at_share")
    assert victim.wait() == -signal.SIGKILL
    server.says("3 silos have shared, but at least 4 are needed")
    killed(server, *silos)
    assert [line["round"] for line in federation.lines()] == [0]


# The first and the last step of a sum; test_secure_attacks.py has the others.
SERVERS = {
    "replaces_a_key": "the keys of silo 2 are not signed with its certificate's key for this attempt; they were re",
    "asks_for_both_kinds_of_share": "silo 1 has not signed that the sum includes silos 1, 2, 3",
    "shows_one_silo_another_model": "the keys of silo 4 are not signed with its certificate's key for this attempt",
    "continues_from_another_state": "the server continues from round 0 and has selected this silo 2 times; this silo",
    "continues_from_a_sum_that_was_not_opened": "the server asks for round 3 before the sum of round 2 was opened",
    "withholds_the_end_of_a_sum": "the server asks for round 3 before the sum of round 2 was opened",
}


WITHOUT_NOISE = list(SERVERS)[-3:]
"""Their attack concerns private states, which only a sum without noise depends on exactly."""


@pytest.mark.parametrize("cheat", SERVERS)
def test_a_server_that_cheats(secure, cheat):
    """Honest silos print one line about it, and open nothing: their logs contain no share of that round."""
    federation = secure(*(FOUR if cheat in WITHOUT_NOISE else NOISY))
    server, silos = federation.server(cheat=cheat), federation.silos(1, 2, 3, 4)
    wait_until(lambda: any(f": {SERVERS[cheat]}" in silo.text for silo in silos), 120)
    killed(server, *silos)
    assert not any("Traceback" in silo.text for silo in silos)
    noted = [audited(federation.folder / f"silo-{rank}", "sum") for rank in (1, 2, 3, 4)]
    assert any(SERVERS[cheat] in entry["reason"] for entries in noted for entry in entries)
    revealed = [audited(federation.folder / f"silo-{rank}", "revealed") for rank in (1, 2, 3, 4)]
    opened = [line["silos"] for lines in revealed for line in lines if (line.get("round") or 0) >= ROUND]
    # withheld from the others, after silo 4 has opened it
    assert opened == ([[1, 2, 3, 4]] if cheat == "withholds_the_end_of_a_sum" else [])


def test_a_server_that_agrees_with_silos_of_other_settings(secure):
    federation = secure()
    server, silo = federation.server(cheat="agrees_with_each_silo"), federation.silo(1)
    others = [federation.silo(rank, "--set", "train_args.learning_rate=1.0e-30") for rank in (2, 3)]
    silo.says("the keys of silo 2 are not signed with its certificate's key for this attempt")
    killed(server, silo, *others)
    assert not audited(federation.folder / "silo-1", "revealed")


def test_a_server_that_begins_a_second_run_on_live_connections(secure):
    """The difference of two runs' sums would be silo 4's vector: a silo process answers one run."""
    federation = secure(*FOUR)
    server = federation.server(cheat="begins_a_second_run")
    silos = [*federation.silos(1, 2, 3), federation.silo(4, cheat="shows_its_vector")]
    for silo in silos[:3]:
        assert silo.wait() == 2
        assert "the server begins another run, and could compare its sums with those of a run that has" in silo.text
    silos[3].says("vector ")
    killed(server, silos[3])
    assert "difference" not in server.text


@pytest.mark.parametrize("pauses", [False, True])
def test_a_silo_joins_no_other_run_before_the_first_has_ended(secure, pauses):
    """A service manager restarts a silo that was killed or has failed, which is no consent of its operator."""
    federation = secure()
    federation.environment = {"FL_LABELSKEW_PAUSE": "1 inf"} if pauses else {}
    server, silos = federation.server(), federation.silos()
    server.says("round 1/")
    if pauses:
        finished(server, *silos)
    else:
        killed(server, *silos)
    federation.environment = {}
    shutil.rmtree(federation.run_dir)
    server = federation.server()
    silos = federation.silos()
    assert [silo.wait() for silo in silos] == [2, 2, 2]
    assert all("the server begins another run, and could compare its sums" in silo.text for silo in silos)
    assert "joined_run" not in server.text  # a path of the silo
    for rank in (1, 2, 3):
        (federation.folder / f"silo-{rank}" / "joined_run").unlink()
    finished(server, *federation.silos())
    assert not (federation.folder / "silo-1" / "joined_run").exists()


def test_without_noise_silos_that_fail_send_no_reason(secure):
    federation = secure()
    server, _ = federation.server(), federation.silo(1)
    silos = [federation.silo(2, cheat="fails_in_training"), federation.silo(3, cheat="fails_with_a_bug")]
    reasons = (
        "round 2: client 2: fc.weight is not finite",
        "IndexError('index 8 is out of bounds for dimension 0 with size 5')",
    )
    for rank, (silo, reason) in enumerate(zip(silos, reasons, strict=True), 2):
        assert silo.wait() == 2  # so that no service manager starts it again
        assert f"error: {reason}; the reason was not sent to the server" in silo.text
        server.says(f"silo {rank} stopped: its training failed")
        assert reason not in server.text
    again = federation.silo(2)
    assert again.wait() == 2
    failed = federation.folder / "silo-2" / "training_failed"
    assert f"read this silo's log, and remove {failed} to take part again" in again.text


def test_a_server_that_asks_for_the_size_of_a_silo(secure):
    """A silo that cannot believe the number of all samples sends no message with its own number."""
    federation = secure()
    server, silos = federation.server(cheat="says_that_all_silos_have_one_sample"), federation.silos()
    assert [silo.wait() for silo in silos] == [2, 2, 2]
    what = "the server's federation: num_samples is 1 at the server"
    sizes = [re.search(f"error: {what}; expected here: a whole number from (\\d+) to", silo.text) for silo in silos]
    for rank in (1, 2, 3):
        server.says(f"silo {rank} stopped: {what}, which this silo does not accept")
    killed(server)
    assert not any(re.search(rf"\b{size[1]}\b", server.text) for size in sizes)


# One for each step, and the last one for silo 1; test_secure_attacks.py has more.
SILOS = {
    "shows_the_point_at_infinity": "silo 4 sent keys that are not three points of the curve",
    "deals_a_wrong_share": "silo 4 sent silo 2 shares that do not fit its commitments",
    "complains_of_others": "silo 4 complained about silo 1, but the shares of silo 1 match",
    "sends_values_out_of_range": "the vector of silo 4 has values of more than 20 bits",
    "reveals_wrong_shares": "silo 1 revealed wrong shares",
}


def test_silos_that_cheat_in_one_round_each(secure):
    """The server names them, and continues with the others, also with the receiver of the wrong shares."""
    federation = secure(*NOISY, "comm_args.secure_bits=20", "train_args.comm_round=7")
    *others, last = [f"{cheat}@{round}" for round, cheat in enumerate(SILOS, 1)]
    others.append("reveals_late@5")
    server, honest = federation.server(), federation.silos(2, 3)
    finished(server, *honest, federation.silo(1, cheat=last), federation.silo(4, cheat="+".join(others)))
    for round, line in enumerate(SILOS.values(), 2):
        assert f"round {round}: {line}" in server.text
    assert left_out(federation) == [[], [3], [3], [3], [3], [], []]


def test_a_silo_that_answers_each_step_late_is_excluded(secure):
    """Six steps of two seconds are more than a step may take of the deadline of the round."""
    federation = secure(*NOISY, "comm_args.round_deadline_s=8")
    server, silos = federation.server(), federation.silos(1, 2, 3)
    federation.silo(4, cheat="answers_each_step_late")
    finished(server, *silos)
    assert "round 2: silo 4 sent no keys in time; skipped until it sends a message" in server.text


@pytest.mark.parametrize("kind", [Kind.KEYS, Kind.MASKED, Kind.REVEALED], ids=lambda kind: kind.name)
def test_a_silo_that_is_silent_at_a_step(secure, kind):
    """Honest silos on slow lines lose no time, and are charged once a round. In the last step, three silos suffice."""
    federation = secure(*NOISY, "comm_args.round_deadline_s=12")
    server = federation.server()
    honest = [federation.silo(rank, cheat="has_a_slow_line") for rank in (1, 2, 3)]
    federation.silo(4, cheat=f"silent_at_{kind.name}")
    finished(server, *honest)
    waits = kind is not Kind.REVEALED
    assert left_out(federation) == [[], *[[3] if waits else []] * 2]
    line = f"round 2: silo 4 sent no {wire.STEPS[kind]} in time; skipped until it sends a message"
    assert (line in server.text) == waits
    assert [charged(federation, rank) for rank in (1, 2, 3)] == [[-1, 0, 1, 2]] * 3


def test_a_sum_needs_min_clients_from_the_first_step_to_the_last(secure):
    """More than the threshold of sums needs; so a policy with that number holds after the masks are shared, too."""
    federation = secure(*NOISY, "comm_args.min_clients=4", "comm_args.quorum_timeout_s=5")
    federation.give_files(one="policy: {}", two="policy: {}", careful="policy: {min_clients: 4}", four="policy: {}")
    server, _ = federation.server(), federation.silos(1, 2, 3)
    federation.silo(4, cheat="dies_at_mask")
    assert server.wait() == 1, server.text
    assert "round 2: 3 silos have sent a vector, but at least 4 are needed; the sum is not opened" in server.text
    assert "error: round 2: 3 of at least 4 uploads arrived (comm_args.min_clients" in server.text
    assert audited(federation.folder / "silo-3", "revealed")[-1].get("round") == 0


def test_silos_killed_in_the_last_step_need_not_come_back(secure):
    """Some silos may have opened the sum. With noise, one over other silos is one more answer, which is charged."""
    federation = secure(*NOISY, "comm_args.quorum_timeout_s=3")
    server, silos = federation.server(), federation.silos(1, 2)
    victims = [federation.silo(rank, cheat="dies_at_reveal") for rank in (3, 4)]
    assert server.wait() == 1
    assert "2 silos have revealed their shares, but at least 3 are needed" in server.text
    killed(*silos, *victims)
    assert charged(federation, 1) == [-1, 0, 1]
    server = federation.server(resume=True)
    finished(*federation.silos(1, 2, 3), server)
    assert [charged(federation, rank) for rank in (1, 2, 3)] == [[-1, 0, 1, 1, 2]] * 3


def test_a_silent_silo_in_the_last_step_is_not_needed_once_another_returns(secure):
    """Silo 3 is lost, so that the sum needs all others; the silent one has no veto over the rest of the run."""
    federation = secure(*NOISY, "comm_args.round_deadline_s=12")
    server, silos = federation.server(), federation.silos(1, 2)
    victim, _ = federation.silo(3, cheat="dies_at_mask"), federation.silo(4, cheat="silent_at_REVEALED")
    assert victim.wait() == -signal.SIGKILL
    finished(federation.silo(3), server, *silos)
    assert "round 2: silo 4 sent no revealed shares in time" in server.text
    assert [charged(federation, rank) for rank in (1, 2)] == [[-1, 0, 1, 1, 2]] * 2


def test_a_silo_that_is_ready_just_in_time_delays_no_slow_connection(secure):
    """Vectors have at least a quarter of the deadline; an equal part of the remaining time was a sixteenth."""
    federation = secure(*NOISY, "comm_args.round_deadline_s=8")
    honest = [federation.silo(rank, cheat="sends_its_vector_1_s_late") for rank in (1, 2, 3)]
    server, late = federation.server(), federation.silo(4, cheat="is_ready_just_in_time")
    finished(server, *honest, late)
    assert left_out(federation) == [[], [], []]
    assert charged(federation, 1) == [-1, 0, 1, 2]


def test_more_slow_connections_than_a_sum_can_lose_get_more_time(secure):
    federation = secure(*NOISY, "comm_args.round_deadline_s=8")
    slow = [federation.silo(rank, cheat="sends_its_vector_5_s_late") for rank in (3, 4)]
    server = federation.server()
    finished(server, *federation.silos(1, 2), *slow)
    assert left_out(federation) == [[], [], []]
    assert "the sum is not opened, and the attempt is repeated" in server.text


def seconds(federation, rank, event, kind=None):
    """From the request for training in that round to the next such event, in a silo's audit log."""
    lines = iter(audited(federation.folder / f"silo-{rank}"))
    asked = next(line for line in lines if (line.get("kind"), line.get("round")) == ("TRAIN", ROUND))
    then = next(line for line in lines if (line["event"], line.get("kind")) == (event, kind))
    since, until = (datetime.fromisoformat(line["time"].replace("Z", "+00:00")) for line in (asked, then))
    return (until - since).total_seconds()


def test_a_silo_that_trains_answers_at_a_fixed_time_and_neither_reads_nor_reconnects(secure):
    """With the model of a server that cheats, training may be short at a silo with a known sample.

    Messages of other rounds would slow training down, until that takes longer than the fixed time.
    """
    federation = secure(*NOISE, *TWO_ROUNDS, "comm_args.answer_after_s=3", "comm_args.reconnect_s=1")
    server, silos = federation.server(cheat="floods_and_cuts_in_training"), federation.silos(2, 3)
    finished(server, *silos, federation.silo(1, cheat="trains_at_once"))
    assert left_out(federation) == [[], []]
    assert all(seconds(federation, rank, "sent", "UPLOAD") >= 2.9 for rank in (1, 2, 3))
    assert seconds(federation, 2, "connected") >= 2.9
    assert seconds(federation, 3, "received", "VERDICT") >= 2.9


def test_a_silo_refuses_training_before_the_opening_at_once(secure):
    federation = secure(*NOISE, "comm_args.answer_after_s=60")
    _, silos = federation.server(cheat="asks_for_training_before_the_opening"), federation.silos()
    assert [silo.wait() for silo in silos] == [1, 1, 1]
    assert not any("trained in" in silo.text for silo in silos)


def test_a_silo_whose_first_training_fails_keeps_a_finite_state_as_others_do(secure):
    """With none it would be faster in later rounds: no state to read, no teacher."""
    federation = secure(*NOISE, "method_args.method=[fedshift, fedphp]", "train_args.comm_round=1")
    cheats = ("fails_in_its_first_training", "is_not_finite_in_its_first_training")
    failing = [federation.silo(rank, cheat=cheat) for rank, cheat in enumerate(cheats, 2)]
    finished(federation.server(), federation.silo(1), *failing)
    assert all("this silo adds only noise to the sum of this round" in silo.text for silo in failing)
    states = [sorted((federation.folder / f"silo-{rank}").glob("*/states/*")) for rank in (1, 2, 3)]
    assert len({tuple((file.name, file.stat().st_size) for file in files) for files in states}) == 1
    assert states[1][0].stat().st_size > 1000
    assert all(value.isfinite().all() for files in states for value in load_file(files[0]).values())
    for kept, spare in states[1:]:  # the same state after a restart, so that a repeated request has the same digest
        assert kept.read_bytes() == spare.read_bytes()


def test_shared_tensors_of_a_wrong_shape_are_refused_by_all_silos(secure):
    """Training would fail only at silos with samples of certain classes."""
    federation = secure(
        *NOISE, "method_args.method=fd", "comm_args.send_contributions=false", "train_args.comm_round=2"
    )
    server, silos = federation.server(cheat="sends_a_short_teacher"), federation.silos(1, 2, 3)
    assert [silo.wait() for silo in silos] == [1] * 3
    line = "the server's shared tensor total has the shape [4, 10]; with noise, 10 rows of at most"
    assert all(line in silo.text for silo in silos)
    killed(server)
    assert [charged(federation, rank) for rank in (1, 2, 3)] == [[-1]] * 3


def test_silos_that_fail_in_training_look_like_the_others(secure):
    """A server can make a model or tensors with which training fails only with certain samples; or the GPU is lost."""
    federation = secure(*NOISE, *PER_CLIENT, "train_args.comm_round=4")
    lost, fails = federation.silo(2, cheat="loses_its_device"), federation.silo(3, cheat="fails_in_training")
    server = federation.server()
    finished(server, lost, fails, federation.silo(1), observed := federation.silo(4, cheat="reports_freed_results"))
    assert observed.text.count("results are freed") >= 4
    assert "results are kept" not in observed.text
    assert observed.text.count("vector is kept") >= 3  # until the next turn, also with the server's verdict
    assert "vector is freed" not in observed.text
    noise = "this silo adds only noise to the sum of this round"
    assert lost.text.count(noise) == 3
    assert lost.text.count("has failed; this silo trains again after a restart") == 1
    assert f"fc.weight is not finite; {noise}" in fails.text
    known = server.text.partition("round 1/")[2]
    for rank in (2, 3):
        assert f"silo {rank}" not in known.replace(f"silo {rank} has disconnected", "")  # after the last round
        assert charged(federation, rank) == [-1, 0, 1, 2, 3]
    assert left_out(federation) == [[]] * 4
    sent = [audited(federation.folder / f"silo-{rank}", "sent") for rank in (1, 2, 3)]
    # on a busy machine, a silo may connect twice
    kinds = [[line["kind"] for line in lines if line["kind"] != "HELLO"] for lines in sent]
    assert kinds[1] == kinds[2] == kinds[0]


def test_with_noise_silos_test_one_model_per_round_and_report_nothing(secure):
    federation = secure(*PER_CLIENT, *NOISE)
    server = federation.server(cheat="asks_for_right_answers_under_noise+tests_two_models")
    silos = federation.silos(1, 2, 3, 4)
    finished(server, *silos)
    assert "test after round 1: " in server.text
    line = "test after round 2: the server repeats this round of this run with another question"
    assert all(line in silo.text for silo in silos)
    for rank in (1, 2, 3, 4):
        assert own_tests(federation, rank)[0].keys() == {0, 1, 2}
        assert not [line for line in audited(federation.folder / f"silo-{rank}", "revealed") if "of" in line]
    assert all(POOLED not in line for line in federation.lines())


def test_a_silo_that_is_ready_and_restarts_does_not_end_the_run(secure):
    """It takes its answer back after the server has counted it; meanwhile another silo has returned."""
    federation = secure(*NOISY, "comm_args.round_deadline_s=8", "comm_args.reconnect_s=2")
    server, honest = federation.server(), federation.silos(1, 2)
    dying = federation.silo(3, cheat="dies_before_it_is_ready")
    federation.silo(4, cheat="is_ready_and_pretends_to_restart")
    dying.wait()
    server.says("silo 3 did not reconnect")
    finished(server, *honest, federation.silo(3))
    assert federation.lines()[ROUND]["clients"] == [0, 1, 2]
