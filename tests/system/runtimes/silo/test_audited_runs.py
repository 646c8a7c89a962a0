"""The audit logs of real federations: server and silos record the same messages, and these match the wire."""

import json

from federations import audited, fingerprint, finished, left_out, same

from fl_labelskew_plugins.ledgers import audit

ENDS = ("sent", "received")


def messages(folder, event, rank):
    """What a log has of the messages with a peer, in order."""
    keys = ("kind", "round", "bytes", "sha256")
    return [[line.get(key) for key in keys] for line in audited(folder, event) if line["rank"] == rank]


def test_server_and_silos_log_the_same_messages_and_senders(federation, sp_weights, certificates):
    federation.overrides = [f"comm_args.certs={certificates}", "method_args.method=fedshift"]
    server = federation.server()
    server.says("listening on")  # else a silo that begins earlier may greet it twice
    silos = federation.silos()
    finished(server, *silos)
    run = json.loads((federation.run_dir / "environment.json").read_text())["run"]
    for folder in (federation.run_dir, *(federation.folder / f"silo-{rank}" for rank in (1, 2, 3))):
        last = audit.verify(folder).last
        assert any(f"last line's SHA-256 {last}" in process.text for process in (server, *silos))
        assert [line["run"] for line in audited(folder, "run")] == [run]
        assert audited(folder)[-1]["event"] == "closed"
        assert not audited(folder, "refused", "gap", "repeated")
    for rank in (1, 2, 3):
        for here, theirs in (ENDS, reversed(ENDS)):
            sent = messages(federation.run_dir, here, rank)
            assert sent == messages(federation.folder / f"silo-{rank}", theirs, 0)
            rounds = [0, 1, 2]
            trains = ["TRAIN", "VERDICT"] if here == "sent" else ["UPLOAD"]
            frame = (["WELCOME"], ["FINISH"]) if here == "sent" else (["HELLO", "OPENING"], ["FINISH"])
            expected = frame[0] + trains * len(rounds) + frame[1]
            assert [kind for kind, *_ in sent] == expected
            assert {round for kind, round, *_ in sent if kind in trains} == set(rounds)
        (connected,) = (line for line in audited(federation.run_dir, "connected") if line["rank"] == rank)
        assert connected["fingerprint"] == fingerprint(certificates, f"silo-{rank}")
        assert connected["peer"].startswith("127.0.0.1:")
        assert audited(federation.folder / f"silo-{rank}", "connected")[0]["peer"] == federation.address
    same(federation.weights(), sp_weights("method_args.method=fedshift"))


def test_a_killed_and_resumed_server_continues_its_log_and_ends_with_identical_weights(federation, sp_weights):
    numbers = ["train_args.epochs=20", "train_args.comm_round=4", "method_args.method=map+fedshift"]
    federation.overrides = [*numbers, "tracking_args.checkpoint_every=2"]
    (federation.folder / "silo-2" / audit.NAME).mkdir(parents=True)  # where a file should be
    server, silos = federation.server(), federation.silos()
    silos[0].says("round 3: trained")  # after the checkpoint of two rounds
    server.kill().wait()
    with (federation.run_dir / audit.NAME).open("ab") as file:
        file.write(b'{"time": "2026')  # as of a kill in the middle of a line
    again = federation.server(resume=True)
    finished(again, *silos)
    events = [line["event"] for line in audited(federation.run_dir)]
    assert events.count("opened") == 2
    assert events.count("closed") == events.count("repaired") == 1
    assert len({line["run"] for line in audited(federation.run_dir, "run")}) == 1
    assert audit.verify(federation.run_dir).repaired == 1
    assert len(audited(federation.folder / "silo-1", "left")) == 2
    audit.verify(federation.folder / "silo-1")
    assert silos[1].text.count("cannot be written: Is a directory; the run continues") == 1
    assert left_out(federation) == [[]] * 4
    same(federation.weights(), sp_weights(*numbers))
