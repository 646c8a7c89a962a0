"""Crowds at the server's port: connections that say nothing, and streams that do; a silo gets in all the same."""

import contextlib
import resource
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from federations import wait_until
from strangers import raw

from fl_labelskew_plugins.recipe.addresses import of_peer
from fl_labelskew_plugins.runtimes.silo import certs, connection_limit, listening
from fl_labelskew_plugins.runtimes.silo.connection_limit import ConnectionLimit, Stranger
from fl_labelskew_plugins.runtimes.silo.listening import SILENT
from fl_labelskew_plugins.runtimes.transport import Kind


@pytest.fixture
def join(start):
    """Makes silos that have joined a server."""

    def join(server, rank):
        silo = start.silo(server.address, rank, tls=True)
        silo.wait(Kind.JOINED)
        return silo.transport

    return join


def stand(place, over, closed):
    """A connection that sends nothing; it is opened again each time that it was closed."""
    while not over.is_set():
        with contextlib.suppress(OSError), socket.create_connection(place, 5) as one:
            while not over.is_set() and not select.select([one], [], [], 0.1)[0]:
                pass
            closed.append(one)


def test_too_many_connections_close_those_without_a_stream(start, join, monkeypatch):
    monkeypatch.setattr(connection_limit, "PLACES", 80)
    monkeypatch.setattr(connection_limit, "GRACE_S", 0.3)
    monkeypatch.setattr(connection_limit, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(connection_limit, "LOOK_S", 0.05)
    server = start(tls=True).transport
    silo = join(server, 1)
    host, port = server.address.split(":")
    over, closed = threading.Event(), []
    with ThreadPoolExecutor(60) as pool, contextlib.ExitStack() as stack:
        stack.callback(over.set)
        for _ in range(60):  # of one address 20 may stay
            pool.submit(stand, (host, int(port)), over, closed)
        wait_until(lambda: len(closed) > 100)
        join(server, 2)
    assert silo.arrived.empty()
    kinds = []
    while "REFUSED" not in kinds:
        arrived = server._next(20)
        kinds.append(Kind(arrived.kind).name)
    assert arrived.sender == -1
    assert arrived.meta["reason"].endswith(", or opened no stream")
    assert arrived.meta["times"] > 0
    assert "LEFT" not in kinds


def test_a_connection_without_a_stream_is_closed_after_a_while(start, join, monkeypatch):
    monkeypatch.setattr(connection_limit, "WAIT_S", 0.3)
    monkeypatch.setattr(connection_limit, "LOOK_S", 0.05)
    server = start(tls=True).transport
    silo = join(server, 1)
    host, port = server.address.split(":")
    with socket.create_server((host, 0)) as other:
        bystander = socket.create_connection(other.getsockname())
        begun = time.monotonic()
        with socket.create_connection((host, int(port)), 20) as stranger:
            assert stranger.recv(1) == b""
        assert time.monotonic() - begun < 8  # gRPC alone would take 10 s
        bystander.sendall(b"still here")
        bystander.close()
    assert silo.arrived.empty()


def strangers(**hosts):
    made = [(since, host) for host, times in hosts.items() for since in times]
    return [Stranger(since, i, host, i) for i, (since, host) in enumerate(sorted(made))]


def test_the_address_with_most_connections_loses_its_oldest():
    crowd = ConnectionLimit(16, print, tls=False)._excess  # 4 of one address, 8 in all
    gone = lambda **hosts: [(s.host, s.since) for s in crowd(strangers(**hosts))]  # noqa: E731
    assert gone(a=range(4), b=range(4)) == []
    assert gone(a=range(6), b=[7]) == [("a", 0), ("a", 1)]
    assert gone(a=range(4), b=range(3), c=[9], d=[10]) == [("a", 0)]
    assert gone(a=range(20), b=range(4), c=[0]) == [("a", n) for n in range(17)]
    assert gone() == []


def test_peer_names_of_grpc_are_parsed():
    assert of_peer("ipv6:%5B::1%5D:4711") == ("::1", 4711)
    assert of_peer("ipv6:[::ffff:10.0.0.1]:4711") == ("10.0.0.1", 4711)
    assert of_peer("ipv6:%5Bfe80::1%25eth0%5D:4711") == ("fe80::1", 4711)


def test_the_limit_of_connections_follows_the_limit_of_open_files():
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, old[1]))
        assert connection_limit.places() == min(
            connection_limit.PLACES, max(old[1] - connection_limit.OTHER_FILES, old[1] // 2)
        )
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(
            old[1], connection_limit.PLACES + connection_limit.OTHER_FILES
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_silent_streams_of_a_member_keep_no_silo_out(start, join, certificates, monkeypatch):
    monkeypatch.setattr(listening, "HELLO_S", 60.0)
    server = start(tls=True).transport
    third = join(server, 3)
    tls, over = certs.read(certificates, "silo-3"), threading.Event()
    with ThreadPoolExecutor(60) as pool:
        crowd = [pool.submit(raw, server.address, tls=tls, hold=over) for _ in range(60)]
        wait_until(lambda: sum(stream.done() for stream in crowd) == 60 - SILENT)
        text = "has opened other connections with this certificate without sending HELLO"
        assert {stream.result() for stream in crowd if stream.done()} == {("RESOURCE_EXHAUSTED", text)}
        for rank in (1, 2, 1):
            join(server, rank)
        assert third.arrived.empty()  # a silo that has sent HELLO stays
        join(server, 3)
        over.set()
