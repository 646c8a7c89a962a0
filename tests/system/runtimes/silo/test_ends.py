"""The end of a federation: silos are notified before pictures are drawn, and missing results are written later."""

import json

from federations import Echo, finished

TWO = ["train_args.comm_round=2"]


def test_a_failed_picture_ends_no_run_and_silos_finish_before_drawing(federation):
    federation.overrides, federation.environment = [*TWO, "comm_args.reconnect_s=1"], {"FL_LABELSKEW_PICTURES": "yes"}
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
    federation.overrides = TWO
    server, silos = federation.server(), federation.silos(1, 2)
    absent = Absent(federation.address, 3)
    finished(*silos)
    server.kill().wait()
    again = federation.server(resume=True)
    finished(again)
    absent.thread.join(20)
    assert absent.ends == 2
    assert (federation.run_dir / "summary.json").exists()
    assert len(federation.lines()) == 2
