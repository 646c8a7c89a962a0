"""Lost connections and frozen servers: no upload is lost without a message, and the weights are identical."""

import json
import re
import signal
import threading
import time

from federations import Echo, finished, left_out, same, wait_until
from wiretap import watched

from fl_labelskew_plugins.runtimes.silo import members
from fl_labelskew_plugins.runtimes.transport import Kind

SLOW = "train_args.epochs=20"
FEDSHIFT = "method_args.method=fedshift"
WELCOME = b"federation"  # in no other message


def line(federation, *overrides):
    """The server's process, started by this, the line that silos have to it, and the address without it."""
    federation.host, federation.overrides, direct = "none", list(overrides), federation.address
    return *watched(federation), direct


class Quick(Echo):
    """Answers on request, with the tensors that it received."""

    def __init__(self, address, rank, leaves_at=None):
        self.leaves_at, self.waits, self.may = leaves_at, [], threading.Semaphore(0)
        super().__init__(address, rank)

    def receive_message(self, kind, arrived):
        if kind == self.leaves_at:
            self.transport.stop_receive_message()
            return
        if kind == Kind.TRAIN:
            self.waits.append(arrived.round)
            assert self.may.acquire(timeout=60)
        super().receive_message(kind, arrived)


def test_silos_disconnected_before_their_openings_are_awaited(federation, sp_weights):
    overrides = ["train_args.comm_round=2", FEDSHIFT]
    server, proxy, _ = line(federation, *overrides)
    proxy.last, proxy.cuts = WELCOME, 3
    finished(server, *federation.silos())
    assert server.text.count("has disconnected") >= 3
    assert left_out(federation) == left_out(federation, "opening_left_out") == [[], []]
    same(federation.weights(), sp_weights(*overrides))


def test_an_interrupted_opening_exchange_can_be_resumed(federation, sp_weights):
    overrides = ["train_args.comm_round=2", FEDSHIFT]
    server, proxy, direct = line(federation, *overrides, "comm_args.reconnect_s=1", "comm_args.quorum_timeout_s=3")
    for rank in (1, 2, 3):
        Quick(direct, rank, leaves_at=Kind.WELCOME)
    assert server.wait() == 1
    assert "opening exchange: silo 1 did not reconnect within 1 s; skipped until it sends a message" in server.text
    *_, last = server.text.strip().splitlines()
    assert last.startswith(
        "error: opening exchange: 0 of at least 2 openings arrived (comm_args.min_clients, round_deadline_s, "
        "quorum_timeout_s); to resume: labelskew run "
    )
    assert f"--resume {federation.run_dir}" in last
    federation.overrides = overrides
    proxy.last, proxy.cuts = WELCOME, 3
    through, federation.address = federation.address, direct
    killed = federation.server(resume=True)
    killed.says("listening on")
    federation.address = through
    silos = federation.silos()
    killed.says("has disconnected")
    killed.kill().wait()
    federation.address = direct
    finished(federation.server(resume=True), *silos)
    assert left_out(federation, "opening_left_out") == [[], []]
    same(federation.weights(), sp_weights(*overrides))


def test_missing_silos_of_the_opening_exchange_are_reported(federation):
    overrides = [SLOW, FEDSHIFT, "train_args.comm_round=4", "tracking_args.checkpoint_every=1"]
    server, proxy, direct = line(federation, *overrides, "comm_args.reconnect_s=1")
    proxy.last, proxy.cuts = WELCOME, 1
    away = federation.silo(3)
    server.says("silo 3 has connected")
    proxy.up = False
    federation.address = direct
    silos = federation.silos(1, 2)
    server.says("opening exchange: silo 3 did not reconnect within 1 s; skipped until it sends a message")
    server.says("round 1/4")
    server.kill().wait()
    proxy.up = True
    again = federation.server(resume=True)
    finished(again, away, *silos)
    rounds_left = left_out(federation, "opening_left_out")
    assert (rounds_left[0], rounds_left[-1]) == ([2], [])
    assert "1 missing in the opening" in server.text
    assert re.search(r"missing in the opening +silo 3\n", again.text)
    assert json.loads((federation.run_dir / "summary.json").read_text())["opening_left_out"] == [2]


def test_in_a_resumed_run_openings_count_without_the_silos_that_sent_them(federation):
    federation.overrides = [SLOW, "method_args.method=feddisco", "train_args.comm_round=12"]
    federation.overrides += ["comm_args.reconnect_s=1", "comm_args.quorum_timeout_s=4", "comm_args.min_clients=1"]
    federation.overrides += ["tracking_args.checkpoint_every=1"]
    server, silos = federation.server(), federation.silos(1, 2)
    server.says("round  2/12")
    for process in (server, silos[1]):
        process.kill().wait()
    again = federation.server(resume=True)
    again.says("silo 2 has not connected; continuing without it")
    silos[0].kill(signal.SIGSTOP)  # so that the run is not over before all this is
    late = federation.silo(3)
    late.says("joined")
    silos[0].kill(signal.SIGCONT)
    late.says("trained in")
    members.exclude(federation.run_dir, 2)
    finished(again, silos[0], late)
    assert "refused" not in again.text
    left = left_out(federation, "opening_left_out")
    assert (left[1], [] in left[2:], left[-1]) == ([2], True, [1])


def test_openings_are_asked_again_if_the_first_round_was_not_saved(federation):
    federation.overrides = [SLOW, "method_args.method=fedshift", "comm_args.quorum_timeout_s=3"]
    federation.overrides += ["comm_args.min_clients=2", "tracking_args.checkpoint_every=100"]
    server, silos = federation.server(), federation.silos()
    silos[0].says("round 1: trained")
    for process in (server, silos[2]):
        process.kill().wait()
    again = federation.server(resume=True)
    finished(again, *silos[:2])
    assert "silo 3 has not connected; continuing without it" in again.text
    assert {tuple(left) for left in left_out(federation, "opening_left_out")} == {(2,)}


def test_an_outage_within_a_round_is_waited_out(federation, sp_weights):
    overrides = [SLOW, "train_args.comm_round=3"]
    server, proxy, _ = line(federation, *overrides, "comm_args.reconnect_s=1", "comm_args.min_clients=3")
    silos = federation.silos()
    server.says("round 1/3")
    proxy.up = False
    proxy.cut()
    for rank in (1, 2, 3):
        server.says(f"silo {rank} did not reconnect within 1 s; skipped until it sends a message")
    time.sleep(0.5)
    proxy.up = True
    finished(server, *silos)
    assert left_out(federation) == [[]] * 3
    same(federation.weights(), sp_weights(*overrides))


def test_time_of_a_frozen_server_is_not_charged_to_silos(federation):
    waits = ["comm_args.round_deadline_s=2", "comm_args.reconnect_s=1.5"]
    server, proxy, direct = line(federation, "train_args.comm_round=2", *waits)
    silos = [Quick(address, rank) for rank, address in ((1, direct), (2, direct), (3, proxy.address))]

    def frozen_while_they_answer(round):
        wait_until(lambda: all(round in silo.waits for silo in silos))
        if round == 1:  # and one of them while it is on its way back
            proxy.cut()
            server.says("silo 3 has disconnected")
        server.kill(signal.SIGSTOP)
        for silo in silos:
            silo.may.release(1 + round)  # an answer without a connection is asked for again
        time.sleep(3)
        server.kill(signal.SIGCONT)

    frozen_while_they_answer(0)
    frozen_while_they_answer(1)
    finished(server)
    assert left_out(federation) == [[], []]
    assert "skipped until" not in server.text
