"""Server and silos over real sockets and real TLS on this machine, and strangers that connect."""

import contextlib
import gc
import json
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
from error_messages import message as message_of
from federations import Hostile, wait_until
from fl_labelskew_registry import LabelSkewError, RunError
from memory import anonymous
from strangers import chunks, files, raw, unread

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.silo import certs, connection_limit, listening, streams
from fl_labelskew_plugins.runtimes.silo.connecting import FROM_SERVER, SiloTransport, in_words
from fl_labelskew_plugins.runtimes.silo.keys import Files
from fl_labelskew_plugins.runtimes.silo.listening import FROM_SILOS, UNREAD, DaemonThreads, ServerTransport
from fl_labelskew_plugins.runtimes.silo.runtime import free_port
from fl_labelskew_plugins.runtimes.silo.streams import METHOD, QUEUED, SERVICE, TAKEN, CutShortError, cut
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind
from fl_labelskew_plugins.runtimes.wire import Header

TENSORS = {"conv.weight": torch.randn(3, 4), "steps": torch.tensor(7), "columns": torch.randn(50, 40).t()}


def pair(start, *, tls=False, rank=1, **options):
    server = start(tls=tls, **options)
    silo = start.silo(server.transport.address, rank, tls=tls)
    server.wait(Kind.HELLO)
    silo.wait(Kind.JOINED)
    return server, silo


def still_serves(start, server, rank=3, *, tls=False):
    """A silo can connect, and its messages arrive."""
    silo = start.silo(server.transport.address, rank, tls=tls)
    silo.wait(Kind.JOINED)
    silo.send(Kind.FAILED, meta={"reason": "none"})
    assert server.wait(Kind.FAILED).sender == rank


@pytest.mark.parametrize("tls", [False, True])
def test_every_kind_of_message_arrives(start, tls):
    server, silo = pair(start, tls=tls, rank=2)
    ways = (silo, server, 0, FROM_SILOS[1:], (2, 0)), (server, silo, 2, FROM_SERVER, (0, 2))
    for sender, peer, receiver, kinds, ends in ways:
        for kind in kinds:
            sender.send(kind, receiver, round=5, meta={"text": "größer"}, tensors=TENSORS)
            arrived = peer.wait(kind)
            assert (arrived.sender, arrived.receiver) == ends
            assert (arrived.round, arrived.meta) == (5, {"text": "größer"})
            assert list(arrived.tensors) == list(TENSORS)
            assert all(torch.equal(arrived.tensors[name], tensor) for name, tensor in TENSORS.items())
    steps = ["KEYS", "SHARES", "CHECKED", "MASKED", "INCLUDED", "REVEALED"]
    assert server.kinds == ["HELLO", "OPENING", "UPLOAD", "TESTED", "FAILED", "FINISH", "SURVEY", *steps]
    assert silo.kinds == ["JOINED", "WELCOME", "TRAIN", "VERDICT", "TEST", "FINISH", "SURVEY", *steps]


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_names_and_both_families_of_addresses_work(start, host):
    server = start(f"{host}:0", tls=True)
    assert server.transport.address.startswith(host + ":")
    assert not server.transport.address.endswith(":0")
    start.silo(server.transport.address, tls=True).wait(Kind.JOINED)


def test_a_message_beyond_2_gb_waits_on_disk(start, tmp_path):
    """Nothing but chunks and pages of zeros is in memory here, on either side."""
    spool, quick = Spool(2**20, tmp_path), Audit(digests=False)
    server = start(spool=spool, audit=quick)
    silo = start.silo(server.transport.address, audit=quick)
    silo.wait(Kind.JOINED)
    server.transport.limits[Kind.UPLOAD] = 2**32
    before = anonymous()
    size = 2**31 + 2**26 + 3
    zeros = torch.from_numpy(np.zeros(size, np.uint8))  # torch.zeros would write every page
    zeros[-1] = 7
    silo.send(Kind.UPLOAD, tensors={"zeros": zeros})
    arrived = server.wait(Kind.UPLOAD).tensors["zeros"]
    assert (len(arrived), arrived[-1].item(), arrived[0].item()) == (size, 7, 0)
    assert spool.held == 0
    assert anonymous() - before < 300
    assert os.listdir(tmp_path) == []


def test_both_sides_log_a_message_without_its_digest(start):
    """With digests: test_audited_runs.py."""
    here, there = [], []
    server = start(audit=Audit(observe=here.append, digests=False))
    silo = start.silo(server.transport.address, audit=Audit(observe=there.append, digests=False))
    silo.wait(Kind.JOINED)
    server.wait(Kind.HELLO)
    server.send(Kind.TRAIN, 1, round=3, tensors=TENSORS)
    silo.wait(Kind.TRAIN)
    sent, received = [next(line for line in lines if line.get("kind") == "TRAIN") for lines in (here, there)]
    assert [sent[key] for key in ("kind", "round", "bytes")] == [received[key] for key in ("kind", "round", "bytes")]
    assert (sent.get("sha256"), received.get("sha256")) == (None, None)


def test_a_limit_may_be_raised_while_handling_an_earlier_message(start):
    server, silo = pair(start)
    big = {"a": torch.zeros(2**20)}

    def raise_limit(welcome):
        time.sleep(0.2)  # TRAIN is here by now
        silo.transport.limits[Kind.TRAIN] = 2**23

    silo.handlers[Kind.WELCOME] = raise_limit
    server.send(Kind.WELCOME, 1)
    server.send(Kind.TRAIN, 1, tensors=big)
    assert silo.wait(Kind.TRAIN).tensors["a"].numel() == 2**20


def test_a_silo_waits_for_a_late_or_restarted_server(start):
    lines = []
    address = f"127.0.0.1:{free_port()}"
    silo = start.silo(address, print_line=lines.append)
    wait_until(lambda: lines)
    assert lines.pop() == f"waiting for the server at {address}: Connection refused"
    first = start(address)
    silo.wait(Kind.JOINED)
    first.wait(Kind.HELLO)
    first.transport.stop_receive_message()
    silo.wait(Kind.LEFT)
    silo.send(Kind.UPLOAD)  # quietly nothing
    second = start(address)
    second.wait(Kind.HELLO)
    silo.wait(Kind.JOINED, 2)
    second.send(Kind.WELCOME, 1)
    silo.wait(Kind.WELCOME)
    assert silo.kinds == ["JOINED", "LEFT", "JOINED", "WELCOME"]
    assert [line.split(" the server")[0] for line in lines if "refused" not in line] == [
        "connected to",
        "waiting for",
        "connected to",
    ]


def test_with_tls_a_new_connection_replaces_the_old_one(start):
    server, old = pair(start, tls=True)
    new = start.silo(server.transport.address, tls=True)
    new.wait(Kind.JOINED)
    server.send(Kind.TRAIN, 1)  # for the old connection: the server has read only its HELLO
    server.wait(Kind.HELLO, 2)
    assert server.kinds == ["HELLO", "LEFT", "HELLO"]
    server.send(Kind.WELCOME, 1)
    new.wait(Kind.WELCOME)
    assert new.kinds == ["JOINED", "WELCOME"]
    with pytest.raises(LabelSkewError, match="it refused this silo: another process with this certificate has conn"):
        old.wait(Kind.WELCOME)
    assert not server.transport.receive(0.3)


def test_without_tls_no_connection_is_replaced(start):
    server, silo = pair(start)
    code, details = raw(server.transport.address, chunks(Kind.HELLO))
    assert (code, details) == ("ALREADY_EXISTS", "claims to be silo 1, which is already connected")
    assert server.wait(Kind.REFUSED).sender == -1
    server.send(Kind.WELCOME, 1)
    silo.wait(Kind.WELCOME)
    assert "LEFT" not in server.kinds


@pytest.mark.parametrize("of_server", [True, False])
def test_queued_messages_arrive_before_the_end(start, of_server):
    server, silo = pair(start)
    sender, receiver, kind = (server, silo, Kind.FINISH) if of_server else (silo, server, Kind.FAILED)
    receiver.transport.limits[kind] = 2**26
    sender.send(Kind.VERDICT if of_server else Kind.UPLOAD, int(of_server))
    sender.send(kind, int(of_server), meta={"reason": "no more data"}, tensors={"model": torch.ones(2**23)})
    sender.transport.stop_receive_message()
    sender.transport.stop_receive_message()
    assert receiver.wait(kind).tensors["model"].sum() == 2**23
    receiver.wait(Kind.LEFT)


def test_a_silo_that_does_not_read_blocks_no_other(start):
    server, good = pair(start, rank=1)
    server.transport.limits[Kind.UPLOAD] = good.transport.limits[Kind.TRAIN] = 2**25
    model = {"model": torch.zeros(2**22)}
    with unread(server.transport.address, chunks(Kind.HELLO, 2)):
        server.wait(Kind.HELLO, 2)
        for round in range(QUEUED + 2):
            server.send(Kind.TRAIN, 2, round=round, tensors=model)
            server.send(Kind.TRAIN, 1, round=round, tensors=model)
            good.wait(Kind.TRAIN, round + 1)
        refused = server.wait(Kind.REFUSED)
        assert (refused.sender, refused.meta["reason"]) == (2, "does not receive the messages sent to it")
        assert server.wait(Kind.LEFT).sender == 2


def test_a_silo_that_sends_endlessly_is_no_longer_read(start):
    server, silo = pair(start)
    for round in range(QUEUED - 2):
        silo.send(Kind.UPLOAD, round=round, tensors={"a": torch.zeros(2**16)})
    time.sleep(0.5)
    assert server.transport.arrived.qsize() <= UNREAD
    server.wait(Kind.UPLOAD, QUEUED - 2)
    assert [arrived.round for arrived in server.got[1:]] == list(range(QUEUED - 2))


@pytest.mark.parametrize(("where", "lists", "most"), [("meta", 50_000, 65536), ("header", 300_000, 245760)])
def test_json_of_many_values_is_refused_before_it_is_parsed(start, where, lists, most):
    """A megabyte of empty lists would take a second of the server's time and 100 MB."""
    server, lists = start(), '{"a": [' + ",".join(["[]"] * lists) + "]}"
    text = lists if where == "header" else json.dumps({"__metadata__": {"meta": lists}})
    text = text.ljust(-len(text) % 8 + len(text)).encode()
    payload = len(text).to_bytes(8, "little") + text
    header = Header(int(Kind.HELLO), 1, 0, -1, len(payload)).pack()
    answer = raw(server.transport.address, cut([header + payload], 2**20))
    assert answer == ("INVALID_ARGUMENT", f"sent JSON of more than {most} values")


def test_a_reconnecting_silo_fills_no_queue(start, certificates):
    """Messages of its earlier connections count, too."""
    server, tls = start(tls=True), files(certificates, "silo-1")
    sent = [*chunks(Kind.HELLO)] + 9 * [*chunks(Kind.UPLOAD, a=torch.zeros(2**16))]
    for _ in range(5):
        with unread(server.transport.address, sent, tls=tls):
            time.sleep(0.3)
    time.sleep(0.5)
    arrived = server.transport.arrived
    waiting = [arrived.get_nowait().kind for _ in range(arrived.qsize())]
    assert len([kind for kind in waiting if kind in (Kind.HELLO, Kind.UPLOAD)]) == UNREAD


IDLE = """
import time
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
server = ServerTransport("127.0.0.1:0", silos=1)
silo = SiloTransport(server.address, 1)
silo.start()
server.receive(60)
silo.receive(60)
server.receive(0.5)
before = time.process_time()
server.receive(2.0)
print(time.process_time() - before, flush=True)
raise SystemExit(3)
"""


def test_an_idle_server_rests_and_a_process_that_fails_ends():
    command = [sys.executable, "-W", "ignore", "-c", IDLE]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert float(done.stdout) < 0.02
    assert done.returncode == 3


@pytest.mark.parametrize("tls", [False, True])
def test_strange_bytes_do_no_harm(start, tls):
    server = start(tls=tls)
    host, port = server.transport.address.split(":")
    noise = random.Random(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for sent in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        noise.randbytes(100_000),
        preface + noise.randbytes(10_000),
        preface + b"\0\0\0\4\0\0\0\0\0" + noise.randbytes(1000),
        b"\x16\x03\x01\xff\xff" + noise.randbytes(1000),
        b"",
    ):
        with socket.create_connection((host, int(port))) as stranger, contextlib.suppress(OSError):
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(10)
            while stranger.recv(4096):
                pass
    still_serves(start, server, tls=tls)


def head(length, kind=Kind.HELLO):
    return Header(kind, 1, 0, 0, length).pack()


HELLO = [*chunks(Kind.HELLO)]
PAYLOAD = struct.pack("<Q", 3 * 2**30) + b"{}"
INVALID, DENIED, LARGE = "INVALID_ARGUMENT", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        ([b"hello"], INVALID, "sent 5 bytes where a message begins, fewer than its header has"),
        ([b"x" * 1000], INVALID, "sent bytes that are not a message of this package"),
        ([*chunks(Kind.UPLOAD)], INVALID, "sent UPLOAD before HELLO"),
        ([*chunks(Kind.TRAIN)], INVALID, "sent a message of type 4, which no silo sends"),
        ([*chunks(Kind.LEFT)], INVALID, "sent a message of type 101, which no silo sends"),
        ([*chunks(Kind.HELLO, 4)], DENIED, "claims to be silo 4; 1 to 3 are expected"),
        ([*chunks(Kind.HELLO, 0)], DENIED, "claims to be silo 0; 1 to 3 are expected"),
        ([*chunks(Kind.HELLO, 1, 2)], INVALID, "sent a message to 2, not to the server"),
        ([head(2**63)], LARGE, "sent HELLO of 9223372036854775808 bytes; at most 1048576 are expected"),
        ([*HELLO, *HELLO], INVALID, "sent a second HELLO"),
        ([*HELLO, *chunks(Kind.UPLOAD, 2)], DENIED, "claims to be silo 2"),
        ([*HELLO, head(3 * 2**30, Kind.UPLOAD)], LARGE, "sent UPLOAD of 3221225472 bytes; at most 1048576 are"),
        (
            [*HELLO, head(len(PAYLOAD), Kind.UPLOAD) + PAYLOAD],
            INVALID,
            "sent a JSON header of 3221225472 bytes in a payload of 10; at most 1048576 are allowed",
        ),
    ],
)
def test_protocol_violations_are_disconnected(start, sent, code, reason):
    server = start()
    said, details = raw(server.transport.address, sent)
    assert (said, details[: len(reason)]) == (code, reason)
    refused, joined = server.wait(Kind.REFUSED), sent[: len(HELLO)] == HELLO
    assert (refused.sender, refused.meta["reason"]) == (1 if joined else -1, details)
    if joined:
        server.wait(Kind.LEFT)
    assert server.kinds == (["HELLO", "REFUSED", "LEFT"] if joined else ["REFUSED"])
    still_serves(start, server)


def test_an_incomplete_message_is_a_lost_connection(start):
    server = start()
    raw(server.transport.address, [*chunks(Kind.HELLO), Header(Kind.UPLOAD, 1, 0, 0, 9).pack() + b"1"])
    server.wait(Kind.LEFT)
    assert server.kinds == ["HELLO", "LEFT"]
    assert not server.transport.receive(0.1)


def test_an_interrupted_message_keeps_no_buffer(start):
    """gRPC keeps the errors of its streams, and with a traceback also the message: a silo could fill the disk."""
    server = start()
    server.transport.limits[Kind.UPLOAD] = 2**24
    spool, head = server.transport._spool, Header(Kind.UPLOAD, 1, 0, 0, 2**24).pack() + b"1"
    gc.disable()
    try:
        for number in (1, 2, 3):
            with unread(server.transport.address, [*chunks(Kind.HELLO), head]):
                wait_until(lambda: spool.held >= 2**24)
            server.wait(Kind.LEFT, number)
            wait_until(lambda: spool.held == 0)
    finally:
        gc.enable()


def test_space_is_reserved_for_one_message_of_a_silo_at_a_time(start):
    """Space is reserved before the bytes of a message arrive, and a replaced stream ends seconds later."""
    transport = start().transport
    transport.limits[Kind.UPLOAD] = 2**24
    header = Header(Kind.UPLOAD, 1, 0, 0, 2**24)
    first, second = (
        SimpleNamespace(rank=1, greeted=True, closed=False, ended=False, receiving=False) for _ in range(2)
    )
    transport._admit(first, header)
    other = threading.Thread(target=transport._admit, args=(second, header))
    other.start()
    time.sleep(0.5)
    assert not second.receiving
    transport._received(first)
    other.join(10)
    assert second.receiving
    first.closed = True
    with pytest.raises(CutShortError):
        transport._admit(first, header)


def test_silent_connections_are_closed(start, monkeypatch):
    monkeypatch.setattr(listening, "HELLO_S", 0.2)
    server = start()
    said = raw(server.transport.address, hold=(hold := threading.Event()))
    hold.set()
    assert said == ("DEADLINE_EXCEEDED", "sent no HELLO within 0.2 s")
    assert server.wait(Kind.REFUSED).sender == -1


def test_strangers_cannot_take_all_connections(start, monkeypatch):
    monkeypatch.setattr(listening, "HELLO_S", 1.0)
    server = start(silos=3)
    hold = threading.Event()
    with ThreadPoolExecutor(40) as pool:
        for _ in range(40):
            pool.submit(raw, server.transport.address, hold=hold)
        still_serves(start, server)
        hold.set()


class Full(Spool):
    def buffer(self, size):
        if size > 1000:
            raise OSError(28, "No space left on device")
        return super().buffer(size)


def test_a_full_disk_ends_a_silo_with_a_retryable_exit_code(start):
    server = start()
    silo = start.silo(server.transport.address, spool=Full())
    server.wait(Kind.HELLO)
    server.send(Kind.WELCOME, 1, tensors={"a": torch.zeros(1000)})
    with pytest.raises(RunError, match="cannot store a message of the server: No space left on device; ") as ended:
        silo.wait(Kind.LEFT, 9)
    assert ended.value.exit_code == 1


def test_a_full_disk_ends_only_the_connection(start):
    server, silo = pair(start, spool=Full())
    silo.send(Kind.UPLOAD, tensors={"a": torch.zeros(1000)})
    reason = server.wait(Kind.REFUSED).meta["reason"]
    assert reason == "sent a message that does not fit on the disk: No space left on device"
    server.wait(Kind.LEFT)
    silo.wait(Kind.JOINED, 2)


def test_a_pickle_runs_nothing(start, tmp_path):
    """Neither in the stock host's own form, to its own method, nor in ours."""
    evil = pickle.dumps(Hostile(tmp_path / "ran"))
    assert len(evil) < 128
    server = start()
    request = b"\x08\x01\x12" + bytes([len(evil)]) + evil  # its CommRequest: client_id 1, message
    with grpc.insecure_channel(server.transport.address) as channel:
        for method in ("sendMessage", "handleReceiveMessage"):
            for path in ("/gRPCCommManager/", "/fl_labelskew.Silos/"):
                with pytest.raises(grpc.RpcError) as refused:
                    channel.unary_unary(path + method)(request)
                assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert raw(server.transport.address, [request])[0] == "INVALID_ARGUMENT"
    said = raw(server.transport.address, [Header(Kind.HELLO, 1, 0, 0, len(evil)).pack() + evil])
    assert said[0] == "INVALID_ARGUMENT"
    assert not (tmp_path / "ran").exists()
    still_serves(start, server)


def test_connections_that_show_no_certificate_are_counted(start, certificates, others, monkeypatch):
    for name, seconds in {"HANDSHAKE_S": 1.0, "LATE_S": 0.5, "TELL_S": 0.5}.items():
        monkeypatch.setattr(connection_limit, name, seconds)
    server, silo = pair(start, tls=True)
    host, port = server.transport.address.split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    ca = (certificates / "ca.pem").read_bytes()
    for tls in (None, Files("nobody", ca, None, None), files(others, "silo-1", certificates)):
        assert raw(server.transport.address, chunks(Kind.HELLO), tls=tls)[0] == "UNAVAILABLE"
    times = 0
    until = time.monotonic() + 60
    while times < 23:
        assert time.monotonic() < until
        if not server.transport.receive(0.5):
            continue
        arrived = server.got[-1]
        assert (arrived.kind, arrived.sender) == (Kind.REFUSED, -1)
        assert arrived.meta["reason"].startswith("showed no certificate of this federation's authority, or ")
        times += arrived.meta["times"]
    assert not server.transport.receive(1)  # nothing of the silo that is here
    silo.send(Kind.FAILED)
    server.wait(Kind.FAILED)


def test_the_certificate_identifies_a_silo(start, certificates):
    server = start(tls=True)
    said = raw(server.transport.address, chunks(Kind.HELLO, 2), tls=files(certificates, "silo-1"))
    assert said == ("PERMISSION_DENIED", "claims to be silo 2")
    assert server.wait(Kind.REFUSED).sender == 1
    silo = start.silo(server.transport.address, 2, tls=files(certificates, "silo-1"))
    with pytest.raises(LabelSkewError, match="it refused this silo: claims to be silo 2"):
        silo.wait(Kind.JOINED)
    sent = [*chunks(Kind.HELLO, 1), *chunks(Kind.UPLOAD, 2)]
    assert raw(server.transport.address, sent, tls=files(certificates, "silo-1"))[1] == "claims to be silo 2"
    assert server.wait(Kind.REFUSED, 3).sender == 1
    still_serves(start, server, 2, tls=True)


@pytest.mark.parametrize("name", [None, "server"])
def test_a_wrong_kind_of_certificate_is_explained(start, certificates, name):
    server = start(tls=True)
    lines = []
    silo = start.silo(server.transport.address, tls=name and files(certificates, name), print_line=lines.append)
    wait_until(lambda: lines)
    assert not silo.transport.receive(0.5)
    assert lines == [
        f"waiting for the server at {server.transport.address}: it closes connections; check that both sides "
        "have certificates of the same authority"
    ]


@pytest.mark.parametrize(
    ("server_files", "said"),
    [
        (lambda ours, _: files(ours, "silo-2"), "(unsupported certificate pur"),
        (lambda _, others: files(others, "server"), "was not issued by this silo's ca.pem ("),
        (lambda _, others: None, "it does not use TLS; remove comm_args"),
    ],
)
def test_a_silo_explains_a_refused_server(start, certificates, others, server_files, said):
    server = start(tls=server_files(certificates, others))
    silo = start.silo(server.transport.address, tls=files(certificates, "silo-1"))
    line = message_of(lambda: silo.wait(Kind.JOINED))
    assert line.startswith(f"the server at {server.transport.address}: it")
    assert said in line


def test_a_server_of_another_name_is_not_the_server(start, tmp_path):
    certs.new(tmp_path, 1, ["fl.example.org"])
    server = start(tls=certs.read(tmp_path, "server"))
    silo = start.silo(server.transport.address, tls=certs.read(tmp_path, "silo-1"))
    with pytest.raises(LabelSkewError, match="for another host; use `labelskew certs renew server --server"):
        silo.wait(Kind.JOINED)


def test_a_silo_that_was_connected_waits_when_another_program_answers(start, certificates, others):
    """Without a certificate of the federation, somebody at the address cannot stop silos."""
    server, lines = start(tls=True), []
    address = server.transport.address
    silo = start.silo(address, tls=files(certificates, "silo-1"), print_line=lines.append)
    silo.wait(Kind.JOINED)
    server.transport.stop_receive_message()
    silo.wait(Kind.LEFT)
    impostor = start(address, tls=files(others, "server"))
    wait_until(lambda: any("was not issued by this silo's ca.pem" in line for line in lines))
    impostor.transport.stop_receive_message()
    start(address, tls=True)
    silo.wait(Kind.JOINED)


@contextlib.contextmanager
def impostor(*sent):
    """The address of a server that sends these bytes after HELLO."""

    def handle(requests, context):
        context.send_initial_metadata(((TAKEN, "1"),))
        next(requests)
        yield from sent
        next(requests, None)

    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.stream_stream_rpc_method_handler(handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"hello", "sent 5 bytes where a message begins, fewer than its header has"),
        (Header(Kind.UPLOAD, 0, 1, 0, 5).pack(), "sent a message of type 5 from 0 to 1"),
        (Header(Kind.TRAIN, 0, 2, 0, 5).pack(), "sent a message of type 4 from 0 to 2"),
        (Header(Kind.TRAIN, 0, 1, 0, 2**40).pack(), "sent TRAIN of 1099511627776 bytes; at most 1048576 are expected"),
        (Header(Kind.TRAIN, 0, 1, 0, len(PAYLOAD)).pack() + PAYLOAD, "sent a JSON header of 3221225472 bytes in a pay"),
    ],
)
def test_a_silo_refuses_unexpected_messages_of_a_server(start, sent, reason):
    with impostor(sent) as address:
        silo = start.silo(address)
        assert silo.wait(Kind.REFUSED).meta["reason"].startswith(reason)
        assert silo.wait(Kind.JOINED, 2)
        silo.transport.stop_receive_message()


def test_a_silo_reads_no_more_while_many_messages_wait(start):
    """Otherwise a server could fill the memory of a silo during its training."""
    verdict = b"".join(wire.encode(int(Kind.VERDICT), 0, 1, 0, {"taken": True}, {}))
    with impostor(*[verdict] * 100) as address:
        silo = start.silo(address)
        arrived = silo.transport.arrived
        wait_until(lambda: arrived.qsize() > QUEUED)
        time.sleep(0.5)
        assert arrived.qsize() <= QUEUED + 1
        silo.wait(Kind.VERDICT, 100)
        silo.transport.stop_receive_message()


def test_a_silo_does_not_wait_for_another_service(start):
    server = grpc.server(DaemonThreads())
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    silo = start.silo(f"127.0.0.1:{port}")
    with pytest.raises(LabelSkewError, match="another service answers there"):
        silo.wait(Kind.JOINED)
    server.stop(0).wait()


def test_a_failing_hello_is_an_error_of_the_silo(start):
    server = start()
    silo = SiloTransport(server.transport.address, 1)
    silo.hello = lambda: 1 / 0
    silo.start()
    with pytest.raises(ZeroDivisionError):
        silo.receive(60)
    silo.stop_receive_message()


def test_an_unusable_address_is_an_error(start):
    taken = start().transport.address
    for address, said in {
        "localhost": "'localhost' is not an address; use host:port with a port from 0 to 65535, such as 127.0.0.1:8890",
        taken: f"cannot listen at {taken}: address already in use; use a free port of this machine",
        "192.0.2.1:8890": "cannot listen at 192.0.2.1:8890: cannot assign requested address; use an address of this "
        "machine, such as comm_args.listen_address: 0.0.0.0:8890 if silos reach it through a router",
    }.items():
        assert message_of(lambda address=address: start(address, tls=True)).startswith(said)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("failed to connect to all addresses; last error: UNAVAILABLE: ipv4:1.2.3.4:5: Connection refused", None),
        (
            "DNS resolution failed for x.example:1: errors resolving x.example:1: [field:hostname lookup error:address "
            "lookup failed for x.example:1: Domain name not found]",
            "its name cannot be resolved (Domain name not found)",
        ),
        (
            "last error: UNAVAILABLE: ipv4:1.2.3.4:5: Failed parsing HTTP/2 (Expected SETTINGS frame as the first)",
            "a program with another protocol answers there",
        ),
        (
            "last error: UNAVAILABLE: ipv4:1.2.3.4:5: connection attempt timed out before receiving SETTINGS frame",
            "the connection is accepted there, but nothing answers",
        ),
        ("two\nlines\x1b", "two lines?"),
        (None, "no reason given"),
    ],
)
def test_reasons_of_grpc_are_translated(said, line):
    assert in_words(said) == (line or "Connection refused")


@pytest.mark.parametrize("make", [lambda a: ServerTransport(a, silos=1), lambda a: SiloTransport(a, 1)])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:8890", "fl.example.org:8890"])
def test_nothing_leaves_this_machine_without_tls(make, address):
    assert message_of(lambda: make(address)) == (
        f"{address} can be reached from other machines, and there are no certificates; use comm_args.certs "
        "with a folder of `labelskew certs new`, or an address such as 127.0.0.1:8890"
    )


def test_messages_of_one_silo_are_decoded_one_at_a_time(start, monkeypatch):
    """HELLO included: over many connections, a silo could otherwise have many decoded at the same time."""
    busy, together, decoded = threading.Lock(), [], streams.decoded

    def slow(header, payload):
        together.append(not busy.acquire(blocking=False))
        time.sleep(0.1)
        if not together[-1]:
            busy.release()
        return decoded(header, payload)

    monkeypatch.setattr(streams, "decoded", slow)
    address = start().transport.address
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(raw, address, chunks(Kind.HELLO))
    assert len(together) >= 2
    assert not any(together)
