"""Faults in a federation of silos: the effect of each, and that the others finish."""

import json
import re
import shlex
import signal

import pytest
from federations import Echo, finished, left_out, same, wait_until
from recipe_texts import NETWORK

SLOW = "train_args.epochs=20"
FOUR = "train_args.comm_round=4"
STATEFUL = "method_args.method=map"


@pytest.fixture
def federation(federation):
    federation.host = "none"  # FedML takes no part in most faults, and processes start faster without it
    return federation


def test_a_silo_restarted_after_a_kill_in_training_keeps_its_state(federation, sp_weights):
    federation.host = "fedml"
    federation.overrides = [SLOW, FOUR, STATEFUL]
    server, silos = federation.server(), federation.silos()
    silos[1].says("round 2: trained")
    silos[1].kill()
    again = federation.silo(2)
    finished(server, silos[0], again, silos[2])
    assert left_out(federation) == [[]] * 4
    same(federation.weights(), sp_weights(SLOW, FOUR, STATEFUL))
    models = [next((federation.folder / f"silo-{rank}").glob("*/personalised.safetensors")) for rank in (1, 2, 3)]
    assert len({model.read_bytes() for model in models}) == 3


def test_a_server_killed_before_its_first_checkpoint_starts_over(federation, sp_weights):
    federation.overrides = [SLOW, STATEFUL]
    server, silos = federation.server(), federation.silos()
    silos[0].says("round 1: trained")
    server.kill().wait()
    finished(federation.server(resume=True), *silos)
    same(federation.weights(), sp_weights(*federation.overrides))


def test_a_terminated_server_saves_and_silos_wait_for_it(federation, sp_weights, forker, tmp_path):
    federation.overrides = [SLOW, STATEFUL, "tracking_args.checkpoint_every=100"]
    server, federation.host = federation.server(), "fedml"
    silos = federation.silos()
    silos[0].says("round 2: trained")
    server.kill(signal.SIGHUP)  # as when its terminal is closed
    assert server.wait(60) == 130
    assert "Traceback" not in server.text
    *_, last = server.text.splitlines()
    assert re.match(r"interrupted after [12] of 3 rounds; to resume: labelskew run ", last)
    silos[0].says("waiting for the server")
    typed = shlex.split(last.rpartition("to resume: ")[2])
    again = forker.start(typed[1:], tmp_path / "again.log")
    finished(again, *silos)
    assert "starting the server" not in again.text  # and silos, all on this machine
    assert left_out(federation) == [[]] * 3
    same(federation.weights(), sp_weights(SLOW, STATEFUL))


def test_a_paused_server_releases_its_silos_and_resumes_with_them(federation, sp_weights):
    federation.overrides, federation.environment = [STATEFUL], {"FL_LABELSKEW_PAUSE": "2 inf"}
    server, silos = federation.server(), federation.silos()
    finished(server, *silos)
    assert "paused after 2 of 3 rounds\n" in server.text
    assert all("the server paused after 2 of 3 rounds; results: " in silo.text for silo in silos)
    assert len(federation.lines()) == 2
    federation.environment = {}
    server, silos = federation.server(resume=True), federation.silos()
    finished(server, *silos)
    assert len(federation.lines()) == 3
    same(federation.weights(), sp_weights(STATEFUL))


def test_below_the_quorum_the_server_stops_and_silos_keep_their_states(federation, sp_weights, forker, tmp_path):
    federation.overrides = [SLOW, FOUR, STATEFUL, "tracking_args.checkpoint_every=100"]
    federation.overrides += ["comm_args.reconnect_s=0.5", "comm_args.quorum_timeout_s=5", "comm_args.min_clients=3"]
    server, silos = federation.server(), federation.silos()
    silos[2].says("round 2: trained")
    silos[2].kill()
    assert server.wait() == 1
    *_, last = server.text.strip().splitlines()
    assert re.search(r"error: round [23]: \d of at least 3 .*; to resume: labelskew run ", last)
    typed = shlex.split(last.rpartition("to resume: ")[2])
    again = [federation.silo(3), forker.start(typed[1:], tmp_path / "again.log")]
    finished(*again, *silos[:2])
    same(federation.weights(), sp_weights(*federation.overrides[:3]))
    models = [next((federation.folder / f"silo-{rank}").glob("*/personalised.safetensors")) for rank in (1, 2, 3)]
    assert len({model.read_bytes() for model in models}) == 3


def test_a_server_without_any_silo_ends(federation):
    federation.overrides = ["comm_args.quorum_timeout_s=1"]
    server = federation.server()
    assert server.wait() == 1
    assert "0 of at least 2 silos connected within 1 s" in server.text
    assert "Traceback" not in server.text


def test_a_straggler_is_skipped_until_it_answers(federation):
    federation.overrides = [SLOW, "train_args.comm_round=8", "comm_args.round_deadline_s=3"]
    server, silos = federation.server(), federation.silos()
    silos[2].says("round 2: trained")
    silos[2].kill(signal.SIGSTOP)
    server.says("silo 3 missed the deadline of 3 s; skipped until it sends a message")
    silos[2].kill(signal.SIGCONT)
    finished(server, *silos)
    out = left_out(federation)
    assert [2] in out
    assert 2 not in out[-1]
    assert "the server did not use this silo's upload: it came too late" in silos[2].text


def test_a_server_cannot_choose_the_file_that_a_silo_imports(federation, tmp_path):
    files = {name: tmp_path / f"{name}.py" for name in ("ours", "theirs")}
    for name, file in files.items():
        ran = f"import os\n\nopen({str(tmp_path / name)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        file.write_text(f"{ran}{NETWORK}# {name}\n")
    model = {name: ("--set", f"model_args.model={file}:make_network") for name, file in files.items()}
    server, silos = federation.server(*model["theirs"]), [federation.silo(rank, *model["ours"]) for rank in (1, 2, 3)]
    for silo in silos:
        assert silo.wait() == 2
        *_, last = silo.text.strip().splitlines()
        digests = r"SHA-256 \w{16}\.\.\. here and SHA-256 \w{16}\.\.\. at the server"
        assert re.fullmatch(rf"error: model_args.model: .*ours.py: {digests}; use the same file", last), last
    server.kill()
    assert len((tmp_path / "theirs").read_text().split()) == 1  # the server's process
    assert not (tmp_path / "ours").exists()  # settings are compared before a network is built


def test_a_silo_may_not_change_its_data_in_a_run(federation):
    federation.overrides = [SLOW, FOUR]
    _, silos = federation.server(), federation.silos()
    silos[2].says("round 1: trained")
    silos[2].kill()
    odd = federation.silo(3, "--set", "partition_args.classes_per_client=5")
    assert odd.wait() == 2
    assert "the server turned this silo away: it had" in odd.text
    assert odd.text.count("\nerror: ") == 1


UNRULY = """
import torch
from fl_labelskew_plugins.methods.fedavg import FedAvg

class Unruly(FedAvg):
    def loss(self, batch, client):
        if client.round and client.id == 0:
            raise ValueError(f"sample {batch.inputs[0, 0, 0, 0]} of /data/ann")
        terms = super().loss(batch, client)
        if client.round and client.id == 1:
            terms["more"] = terms["cross_entropy"].detach() * float("nan")
        return terms
"""


def test_a_failing_method_ends_its_silo_with_one_line(federation, plugin):
    """What its author's exception says stays there: it may hold values of samples."""
    plugin(UNRULY, "Unruly")
    federation.overrides = ["method_args.method=acme", "comm_args.min_clients=1", "comm_args.reconnect_s=1"]
    server, silos = federation.server(), federation.silos()
    finished(server, silos[2])
    assert [silo.wait() for silo in silos[:2]] == [1, 1]
    raised = "Unruly.loss (unruly) raised ValueError"
    (start, *frames) = silos[0].text[silos[0].text.index("error: ") :].splitlines()
    assert re.fullmatch(re.escape(f"error: {raised}: sample ") + r"\S+ of /data/ann; traceback of its own code:", start)
    assert frames == [
        f'  File "{federation.folder}/unruly.py", line 8, in loss',
        '    raise ValueError(f"sample {batch.inputs[0, 0, 0, 0]} of /data/ann")',
    ]
    diverged = "round 2: client 1: loss term more is nan, training diverged; use a smaller train_args.learning_rate"
    assert silos[1].text.splitlines()[-1] == f"error: {diverged}"
    said = [line for line in server.text.splitlines() if " stopped: " in line]
    assert sorted(said) == [f"silo 1 stopped: {raised}", f"silo 2 stopped: {diverged}"]
    assert left_out(federation) == [[], [0, 1], [0, 1]]


def test_a_failed_picture_ends_no_run_and_silos_finish_before_drawing(federation):
    federation.overrides = ["train_args.comm_round=2", "comm_args.reconnect_s=1"]
    federation.environment = {"FL_LABELSKEW_PICTURES": "yes"}
    server, silos = federation.server(), federation.silos()
    server.says("listening on")
    run = federation.run_dir
    for name in ("curves.png.part", "model.safetensors"):  # a folder in its place
        (run / name).mkdir(parents=True)
    finished(*silos)  # although the server fails
    assert server.wait() != 0
    assert not (run / "summary.json").exists()
    (run / "model.safetensors").rmdir()
    again = federation.server(resume=True)
    finished(again)
    assert "all rounds are done; waiting up to 1 s to notify the silos" in again.text
    assert "warning: " in again.text
    assert "curves.png cannot be drawn: IsADirectoryError" in again.text
    assert json.loads((run / "summary.json").read_text())["rounds"] == 2
    assert not (run / "curves.png").exists()
    (run / "curves.png.part").rmdir()
    (run / "model.safetensors").unlink()
    finished(repaired := federation.server(resume=True))  # it listens for no silo
    assert "listening on" not in repaired.text
    assert (run / "curves.png").stat().st_size > 1000
    assert federation.weights()
    finished(done := federation.server(resume=True))
    assert done.text == f"{run}: all 2 rounds are done already\n"


class Absent(Echo):
    """Takes the end for said when it hears it again."""

    ends = 0

    def leave(self):
        self.ends += 1
        if self.ends == 2:
            super().leave()


def test_a_silo_that_missed_the_end_gets_it_from_the_resumed_server(federation):
    federation.overrides = ["train_args.comm_round=2", "comm_args.reconnect_s=5"]
    server, silos = federation.server(), federation.silos(1, 2)
    absent = Absent(federation.address, 3)
    finished(*silos)
    wait_until(lambda: absent.ends)
    server.kill().wait()
    again = federation.server(resume=True)
    finished(again)
    absent.thread.join(20)
    assert absent.ends == 2
    assert (federation.run_dir / "summary.json").exists()
    assert len(federation.lines()) == 2
