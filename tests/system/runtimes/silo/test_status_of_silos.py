"""``labelskew status`` of a federation of real processes: connected silos, missing silos, and stopped runs."""

import json
import signal

from commands import call
from federations import audited, finished, wait_until

from fl_labelskew_plugins.runs import status

SLOW = "train_args.epochs=20"


def until(federation, holds):
    """The status, once this holds of it."""
    wait_until((federation.run_dir / status.NAME).exists)
    return wait_until(lambda: holds(known := status.read(federation.run_dir)) and known)


def waits(what, *ranks):
    return lambda known: known["waiting_for"] == {"what": what, "silos": [*ranks]}


def test_a_termination_signal_ends_idle_processes_at_once(federation):
    federation.environment = {"FL_LABELSKEW_LOG": "json"}
    server, silo = federation.server(), federation.silo(1)
    server.says("silo 1 has connected")
    assert status.read(federation.run_dir)["state"] == "waiting for silos"
    silo.kill(signal.SIGTERM)
    assert silo.wait() == -signal.SIGTERM
    server.says("silo 1 has disconnected")
    server.kill(signal.SIGTERM)
    assert server.wait() == -signal.SIGTERM
    lines = [json.loads(line) for line in server.text.splitlines()]
    assert {line["level"] for line in lines} == {"INFO"}
    assert [line["message"] for line in lines[1:]] == ["silo 1 has connected (1 of 3)", "silo 1 has disconnected"]
    known = status.read(federation.run_dir)
    assert (known["state"], known["resume"]) == ("stopped", "start it again; no round is lost")
    again = federation.server()  # in the same folder, as a service is
    again.says("listening on")


def test_status_from_the_first_silo_to_the_last_round(federation):
    federation.overrides = [SLOW, "tracking_args.checkpoint_every=1"]
    server = federation.server()
    known = until(federation, waits("to connect", 1, 2, 3))
    assert (known["state"], known["rounds"], known["rounds_done"], known["quorum"]) == ("waiting for silos", 3, 0, 2)
    assert known["address"] == federation.address
    assert [silo["connected"] for silo in known["silos"]] == [False] * 3
    silos = federation.silos(1, 2)
    until(federation, waits("to connect", 3))
    silos.append(federation.silo(3))
    server.says("round 1/3")
    silos[2].kill(signal.SIGSTOP)
    known = until(federation, waits("uploads", 3))
    assert known["state"] == "running"
    first = known["silos"][0]
    assert (first["connected"], first["left_out"], first["turned_away"]) == (True, False, None)
    assert first["upload"]["round"] == known["rounds_done"] + 1
    logged = [line for line in audited(federation.run_dir) if line.get("rank") == 1]
    assert first["bytes_in"] == sum(line["bytes"] for line in logged if line["event"] == "received")
    assert first["bytes_out"] == sum(line["bytes"] for line in logged if line["event"] == "sent")
    assert first["since"] in {line["time"] for line in logged if line["event"] == "connected"}
    shown = call("status", federation.run_dir).output
    assert f"{federation.run_dir}: running, process {server.pid} since " in shown
    assert "\nwaiting for uploads of silo 3\n" in shown
    assert first["peer"] in shown
    server.kill().wait()
    known = status.read(federation.run_dir)
    assert (known["state"], known["reason"]) == ("stopped", f"process {server.pid} ended without a message")
    assert f"--resume {federation.run_dir}" in known["resume"]
    silos[2].kill(signal.SIGCONT)
    server = federation.server(resume=True)
    finished(server, *silos)
    known = status.read(federation.run_dir)
    assert (known["state"], known["rounds_done"], known["process"]) == ("finished", 3, server.pid)
