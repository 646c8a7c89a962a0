import csv
import fcntl
import os
import pty
import struct
import termios
from pathlib import Path

import pytest
from commands import call, errors
from run_folders import folder, resolved

ACCURACIES = {
    ("fedavg", "pcdd"): (0.50, 0.52), ("fedlc", "pcdd"): (0.60, 0.62), ("map", "pcdd"): (0.55, 0.59),
    ("fedavg", "iid"): (0.90, 0.94), ("fedlc", "iid"): (0.90, 0.92),
}  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    """A folder of runs: two seeds of three methods on two partitions, of which one combination is missing."""
    path = tmp_path / "runs"
    path.mkdir()
    for (method, partition), accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            name = f"{partition}-{method}{seed}"
            folder(path / name, resolved(seed, method, partition), [accuracy], personal=0.9, seconds=[1.5])
    return path


def test_a_paper_s_table(runs):
    assert call("report", runs, "--pivot").output.splitlines() == [
        "method           iid          pcdd",
        "fedavg  92.00 ± 2.83  51.00 ± 1.41",
        "fedlc   91.00 ± 1.41  61.00 ± 1.41",
        "map                -  57.00 ± 2.83",
    ]
    assert call("report", runs, "--pivot", "--format", "markdown", "--only", "map", "--only", "fedlc").output == (
        "| method | iid | pcdd |\n| --- | ---: | ---: |\n"
        "| fedlc | 91.00 ± 1.41 | **61.00 ± 1.41** |\n| map | - | *57.00 ± 2.83* |\n"
    )


def test_chosen_columns_and_rows(runs):
    words = ["--only", "pcdd", "--columns", "difference", "--format", "csv"]
    head, *rows = csv.reader(call("report", runs, *words).output.splitlines())
    assert head[-3:] == ["difference", "difference_low", "difference_high"]
    # Of two seeds, t is 12.706: 10 twice, and 5 and 7, which is 6 ± 12.706 * sqrt(2) / sqrt(2)
    assert [row[-3:] for row in rows] == [["", "", ""], ["+10.00", "", ""], ["+6.00", "-6.71", "18.71"]]
    assert "+6.00 [-6.71, 18.71]\n" in call("report", runs, "--columns", "difference").output


def test_mistakes_are_one_line_errors(runs, tmp_path):
    (line,) = errors("report", runs, "--columns", "accuracy,bst")
    assert line.startswith("--columns: 'bst' is unknown; allowed: seeds, rounds, accuracy, best, difference,")
    assert line.endswith("; did you mean best?")
    assert errors("report", runs, "--only", "fedrs", "--only", "pcd") == [
        f"--only: '{name}' is unknown; allowed: fedavg, fedlc, map, FedAvg, iid, pcdd, digits; did you mean {near}?"
        for name, near in (("fedrs", "fedlc"), ("pcd", "pcdd"))
    ]
    (line,) = errors("report", runs, "--html", tmp_path / "no" / "a.html")
    assert line.endswith("no/a.html: cannot be written: No such file or directory")


def test_a_terminal_shows_the_columns_that_fit(runs, forker):
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    assert forker.start(["report", runs], Path(os.ttyname(theirs))).wait() == 0
    table, _, left_out = os.read(ours, 100_000).decode().partition("columns not shown: ")
    head, *rows = table.splitlines()
    assert "\x1b[1m61.00 ± 1.41\x1b[0m" in rows[3]
    assert "\x1b[4m57.00 ± 2.83\x1b[0m" in rows[4]
    shown = head.split()
    assert shown[:5] == ["method", "partition", "seeds", "accuracy", "best"]
    assert max(len(row.replace("\x1b[1m", "").replace("\x1b[4m", "").replace("\x1b[0m", "")) for row in rows) <= 80
    assert max(map(len, left_out.splitlines())) <= 80
    words = " ".join(left_out.split())
    assert words.startswith("data, rounds, ")
    assert words.endswith("s/round, peak MB (use a wider terminal or a pipe)")


def test_a_pivot_needs_finished_runs(tmp_path):
    folder(tmp_path / "a", resolved() | {"train_args": {"comm_round": 9}}, [0.5])
    (line,) = errors("report", tmp_path, "--pivot")
    assert line == "--pivot: needs at least one completed run; use the table without it"
    folder(tmp_path / "b", resolved(method="fedlc"), [0.5])
    head, row = call("report", tmp_path, "--pivot").output.splitlines()[:2]
    assert (head.split(), row.split()) == (["method", "iid"], ["fedlc", "50.00"])
