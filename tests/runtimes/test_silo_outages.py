"""Lines that break and servers that are frozen: nobody's part is lost without being told, and the weights are the same."""

import json
import signal
import threading
import time

import pytest
import torch

from fl_labelskew_plugins.runtimes.grpc_transport import SiloTransport
from fl_labelskew_plugins.runtimes.transport import Kind, message

SLOW = "train_args.epochs=40"
FEDSHIFT = "method_args.method=fedshift"
WELCOME = b"federation"  # in no other message
FACTS = {"samples": 400, "input_shape": [1, 8, 8], "num_classes": 10, "process": "x", "round": -1}


def finished(*processes):
    for process in processes:
        assert process.wait() == 0, process.text


def same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def left_out(federation, key="left_out"):
    return [line.get(key, []) for line in federation.lines()]


@pytest.fixture
def line(federation, make_proxy):
    """The server's process, started through this, and the line that silos have to it."""

    def start(*overrides):
        federation.overrides = list(overrides)
        server = federation.server()
        server.says("listening on")
        direct, proxy = federation.address, make_proxy(federation.address)
        federation.address = proxy.address
        return server, proxy, direct

    return start


class Quick:
    """A silo of this process that answers when it is told to, with what it was sent."""

    def __init__(self, address, rank):
        self.rank, self.asked, self.may = rank, [], threading.Event()
        self.transport = SiloTransport(address, rank)
        self.transport.hello = lambda: message(Kind.HELLO, rank, 0, meta=FACTS)
        self.transport.limits = dict.fromkeys(self.transport.limits, 2**30)
        self.transport.add_observer(self)
        self.transport.start()
        self.thread = threading.Thread(target=self.transport.handle_receive_message, daemon=True)
        self.thread.start()

    def receive_message(self, kind, arrived):
        if kind == Kind.TRAIN:
            self.asked.append(arrived.get("round"))
            assert self.may.wait(60)
            self.transport.send_message(
                message(Kind.UPLOAD, self.rank, 0, round=arrived.get("round"), tensors=arrived.get("tensors"))
            )
        elif kind == Kind.FINISH:
            self.transport.send_message(message(Kind.FINISH, self.rank, 0))
            self.transport.stop_receive_message()


@pytest.mark.parametrize("method", ["fedshift", "reweighting"])
def test_a_silo_cut_before_its_opening_is_waited_for(method, federation, line, sp_weights):
    overrides = ["train_args.comm_round=2", f"method_args.method={method}"]
    server, proxy, direct = line(*overrides)
    proxy.last, proxy.cuts = WELCOME, 1
    cut = federation.silo(3)
    federation.address = direct
    finished(server, cut, *federation.silos(1, 2))
    assert "silo 3 has left" in server.text
    assert left_out(federation) == left_out(federation, "opening_left_out") == [[], []]
    same(federation.weights(), sp_weights(*overrides))


def test_an_outage_in_the_opening_exchange_can_be_sat_out_and_a_server_killed_in_it_resumed(
    federation, line, sp_weights
):
    overrides = ["train_args.comm_round=2", FEDSHIFT]
    server, proxy, direct = line(*overrides, "comm_args.reconnect_s=1", "comm_args.quorum_timeout_s=3")
    proxy.last, proxy.cuts = WELCOME, 3
    silos = federation.silos()
    server.says("silo 3 is here")
    proxy.up = False
    assert server.wait() == 1
    assert "opening exchange: silo 1 did not come back within 1 s; left out until it speaks again" in server.text
    *_, last = server.text.strip().splitlines()
    assert last == (
        "error: opening exchange: 0 of at least 2 openings came (comm_args.min_clients, round_deadline_s, "
        f"quorum_timeout_s); to go on: fedml run --resume {federation.run_dir}"
    )
    through, federation.address = federation.address, direct
    killed = federation.server(resume=True)
    killed.says("listening on")
    proxy.cuts, proxy.up = 3, True
    killed.says("silo 3 has left")
    killed.kill()
    killed.wait()
    again = federation.server(resume=True)
    finished(again, *silos)
    assert through == proxy.address
    assert left_out(federation, "opening_left_out") == [[], []]
    same(federation.weights(), sp_weights(*overrides))


def test_who_is_missing_from_the_opening_exchange_is_told_until_it_is_back(federation, line):
    server, proxy, direct = line(
        SLOW, "train_args.comm_round=4", FEDSHIFT, "comm_args.reconnect_s=1", "comm_args.min_clients=2"
    )
    proxy.last, proxy.cuts = WELCOME, 1
    away = federation.silo(3)
    server.says("silo 3 is here")
    proxy.up = False
    federation.address = direct
    silos = federation.silos(1, 2)
    server.says("opening exchange: silo 3 did not come back within 1 s; left out until it speaks again")
    proxy.up = True
    server.says("round 1/4")
    silos[0].kill(signal.SIGSTOP)  # so that the run waits
    away.says("joined")
    silos[0].kill(signal.SIGCONT)
    finished(server, away, *silos)
    told = left_out(federation, "opening_left_out")
    assert (told[0], told[-1]) == ([2], [])
    assert "1 not in the opening" in server.text
    assert json.loads((federation.run_dir / "summary.json").read_text())["opening_left_out"] == [2]


def test_an_outage_within_a_round_is_sat_out_for_the_time_of_a_quorum(federation, line, sp_weights):
    overrides = [SLOW, "train_args.comm_round=3"]
    server, proxy, _ = line(*overrides, "comm_args.reconnect_s=1", "comm_args.min_clients=3")
    silos = federation.silos()
    server.says("round 1/3")
    proxy.up = False
    proxy.cut()
    for rank in (1, 2, 3):
        server.says(f"silo {rank} did not come back within 1 s; left out until it speaks again")
    time.sleep(2)
    proxy.up = True
    finished(server, *silos)
    assert left_out(federation) == [[]] * 3
    same(federation.weights(), sp_weights(*overrides))


def test_what_came_while_the_server_was_frozen_is_not_late(federation):
    federation.overrides = ["train_args.comm_round=2", "comm_args.round_deadline_s=2", "comm_args.reconnect_s=1"]
    server = federation.server()
    silos = [Quick(federation.address, rank) for rank in (1, 2, 3)]
    until = time.monotonic() + 60
    while not all(silo.asked for silo in silos):
        assert time.monotonic() < until
        time.sleep(0.01)
    server.kill(signal.SIGSTOP)
    for silo in silos:
        silo.may.set()
    time.sleep(4)
    server.kill(signal.SIGCONT)
    finished(server)
    assert left_out(federation) == [[], []]
    assert all(silo.asked == [0, 1] for silo in silos)
    assert "missed the deadline" not in server.text
