"""Certificates that are revoked, renewed or added while a federation runs, over real sockets and TLS."""

import shutil
import signal

import pytest
from error_messages import message
from federations import audited, fingerprint, finished

from fl_labelskew_plugins.ledgers import audit
from fl_labelskew_plugins.runtimes.silo import certs
from fl_labelskew_plugins.runtimes.silo.certs import Revocations, revoke
from fl_labelskew_plugins.runtimes.silo.keys import REVOKED
from fl_labelskew_plugins.runtimes.transport import Kind


def refused(silo):
    """Why the server sends this silo away for good."""
    return message(lambda: silo.wait(Kind.FINISH))  # it never arrives


@pytest.fixture
def folder(tmp_path):
    """Where the certificates are made."""
    certs.new(tmp_path / "made", 3)
    return tmp_path / "made"


@pytest.fixture
def at(folder, tmp_path):
    """A folder of one machine with the copied files; a second call updates them."""

    def at(machine, name):
        kept = tmp_path / machine
        kept.mkdir(exist_ok=True)
        for file in ("ca.pem", f"{name}.pem", f"{name}.key", REVOKED):
            if (folder / file).exists():
                shutil.copy(folder / file, kept / file)
        return kept

    return at


@pytest.fixture
def start(start, at):
    """Makes servers and silos of which each has its own machine, with the list that was copied to it."""

    def tls_of(kept, name):
        tls = certs.read(kept, name)
        return {"tls": tls, "revoked": Revocations(kept, tls)}

    def server(address="127.0.0.1:0", machine="server", **options):
        return start(address, **tls_of(at(machine, "server"), "server"), **options)

    def silo(address, rank=1, thief=None, **options):
        name = f"silo-{rank}"
        own = tls_of(at(name, name), name) if thief is None else {"tls": certs.read(thief, name)}
        return start.silo(address, rank, **own, **options)

    server.silo = silo
    return server


def test_a_revoked_silo_is_disconnected_and_needs_another_certificate(start, folder, at):
    log = audit.Audit()
    server = start(audit=log)
    address, thief = server.transport.address, at("thief", "silo-2")
    one, two = start.silo(address, 1), start.silo(address, 2)
    server.wait(Kind.HELLO, 2)
    old = fingerprint(folder, "silo-2")
    revoke(folder, ["silo-2"])
    at("server", "server")
    why = server.wait(Kind.REFUSED).meta["reason"]
    assert why.startswith(f"its certificate {old} was revoked on ")
    assert why.endswith(" UTC")
    left = [(m.sender, m.meta) for m in (server.wait(Kind.LEFT), server.wait(Kind.LEFT, 2))]
    assert left == [(2, {}), (2, {"revoked": True})]
    line = f"the server at {address}: it refused this silo: {why}"
    assert refused(two) == line
    assert refused(start.silo(address, 2, thief)) == line
    assert server.wait(Kind.REFUSED, 2).sender == 2
    noted = [facts for facts in log._waiting if facts["event"] == "refused"]
    assert [(facts["rank"], facts["fingerprint"], facts["reason"]) for facts in noted] == [(2, old, why)] * 2
    # the owner of the renewed certificate is not affected by the thief's connections or another list
    certs.renew(folder, ["silo-2"])
    again = start.silo(address, 2)
    server.wait(Kind.HELLO, 3)
    assert refused(start.silo(address, 2, thief)) == line
    revoke(folder, ["silo-3"])
    at("server", "server")
    for silo in (one, again):
        silo.send(Kind.FAILED)
    server.wait(Kind.FAILED, 2)
    assert not server.transport.receive(0.5)
    assert sum(arrived.kind == Kind.LEFT for arrived in server.got) == 2


def test_a_revoked_disconnected_silo_is_not_awaited(start, folder, at):
    server = start()
    start.silo(server.transport.address, 2).wait(Kind.JOINED)
    server.wait(Kind.HELLO)
    server.transport._present[2].context.cancel()  # as a line that breaks
    server.wait(Kind.LEFT)
    revoke(folder, ["silo-2"])
    at("server", "server")
    count = 1
    while not server.wait(Kind.LEFT, count).meta:  # each time that it reconnected faster
        count += 1
    assert server.wait(Kind.LEFT, count).meta == {"revoked": True}


def test_a_silo_leaves_a_revoked_server_and_waits_for_another(start, folder, at):
    server = start(machine="old server")
    address = server.transport.address
    said = []
    silo = start.silo(address, 1, print_line=said.append)
    server.wait(Kind.HELLO)
    silo.wait(Kind.JOINED)
    server.send(Kind.WELCOME, 1)
    silo.wait(Kind.WELCOME)
    old = fingerprint(folder, "server")
    revoke(folder, ["server"])
    certs.renew(folder, ["server"])
    at("silo-1", "silo-1")
    silo.send(Kind.UPLOAD)  # is not delivered to an unknown server
    silo.wait(Kind.LEFT)
    server.wait(Kind.LEFT)
    while len(said) < 3:
        silo.transport.receive(0.1)
    assert said[0] == f"connected to the server at {address}"
    assert said[1] == f"waiting for the server at {address}: certificates were revoked; checking its certificate"
    assert said[2].startswith(f"waiting for the server at {address}: its certificate {old} was revoked on ")
    assert [m.kind for m in server.got] == [Kind.HELLO, Kind.LEFT]
    server.transport.stop_receive_message()
    server = start(address)
    server.wait(Kind.HELLO)
    silo.wait(Kind.JOINED, 2)
    assert said[-1] == f"connected to the server at {address}"
    # a valid connection remains, and its messages are received
    revoke(folder, ["silo-3"])
    at("silo-1", "silo-1")
    server.send(Kind.WELCOME, 1)
    silo.wait(Kind.WELCOME, 2)


def test_a_message_of_a_revoked_server_is_dropped_unread(start, folder, at):
    server = start()
    said = []
    silo = start.silo(server.transport.address, 1, print_line=said.append)
    server.wait(Kind.HELLO)
    silo.wait(Kind.JOINED)
    revoke(folder, ["server"])
    at("silo-1", "silo-1")
    server.send(Kind.TRAIN, 1)
    silo.wait(Kind.REFUSED)
    silo.wait(Kind.LEFT)
    while len(said) < 3:
        silo.transport.receive(0.1)
    assert "its certificate" in said[2]
    assert Kind.TRAIN not in [m.kind for m in silo.got]


def test_a_silo_that_checks_the_server_first_is_not_counted_as_a_stranger(start, folder):
    revoke(folder, ["silo-3"])
    server = start()
    start.silo(server.transport.address, 1).wait(Kind.JOINED)
    server.wait(Kind.HELLO)
    assert not server.transport._limit._handshakes  # of which those are told that have come to nothing


def test_a_certificate_may_be_created_while_the_server_waits(start, folder, tmp_path):
    fewer = tmp_path / "fewer"
    certs.new(fewer, 1)
    for path in fewer.iterdir():
        shutil.copy(path, folder)
    for path in folder.glob("silo-[23].*"):
        path.unlink()
    server = start()
    start.silo(server.transport.address, 1)
    server.wait(Kind.HELLO)
    certs.new(folder, 4, add=True)
    start.silo(server.transport.address, 3)
    assert server.wait(Kind.HELLO, 2).sender == 3
    said = refused(start.silo(server.transport.address, 4))
    assert said.endswith("it refused this silo: its certificate is not one of silo-1 to silo-3")


def test_a_silo_revoked_in_a_run_is_excluded_from_then_on(federation, folder, at):
    federation.overrides = ["train_args.epochs=20", "train_args.comm_round=5", "comm_args.reconnect_s=3600"]
    federation.host = "none"
    (folder / "silo-3.pem").unlink()

    def silo(rank):
        return federation.silo(rank, "--set", f"comm_args.certs={folder.parent / f'silo-{rank}'}")

    for name in ("server", "silo-1", "silo-2"):
        at(name, name)
    server = federation.server("--set", f"comm_args.certs={folder.parent / 'server'}")
    silos = [silo(1), silo(2)]
    server.says("silo 2 has connected")
    certs.new(folder, 3, add=True)  # while the server waits
    at("silo-3", "silo-3")
    out = silo(3)
    silos[0].says("round 2: trained")
    silos[0].kill(signal.SIGSTOP)  # so that the run is not over before all this is
    shown = fingerprint(folder, "silo-3")
    listed, _ = revoke(folder, ["silo-3"])
    at("server", "server")
    (entry,) = listed.entries.values()
    why = f"its certificate {shown} was revoked on {entry:%Y-%m-%d %H:%M} UTC"
    again = None
    for _ in range(2):  # the second time it has just been started
        out = again or out
        assert out.wait() == 2, out.text
        assert [line for line in out.text.splitlines() if "revoked on" in line] == [
            f"error: the server at {federation.address}: it refused this silo: {why}"
        ]
        assert "Traceback" not in out.text
        again = again or silo(3)
    silos[0].kill(signal.SIGCONT)
    finished(server, *silos)
    assert server.text.count(f"silo 3 refused: {why}\n") == 1
    line = "list 1 (1 revoked certificate) applies from now on"
    assert server.text.count(line) == 1
    assert [facts["reason"] for facts in audited(federation.run_dir, "list")] == [line]
    assert "did not reconnect" not in server.text
    joined = [line["clients"] for line in federation.lines()]
    since = joined.index([0, 1])
    assert joined == [[0, 1, 2]] * since + [[0, 1]] * (5 - since)
    refused = audited(federation.run_dir, "refused")
    assert [(line["rank"], line["fingerprint"], line["reason"]) for line in refused] == [(3, shown, why)] * 2
    refused = audited(federation.folder / "silo-3", "refused")
    assert [line["reason"] for line in refused] == [f"it refused this silo: {why}"] * 2
