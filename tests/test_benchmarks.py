"""Every benchmark in its tiny form: that it works, and what it prints; no number of these means anything."""

import re
from pathlib import Path

import pytest
from fl_labelskew_registry import catalog

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.fixture(scope="module")
def tables(forker, tmp_path_factory):
    """The cells of all table rows that a benchmark prints."""

    def run(name):
        out = tmp_path_factory.mktemp(name)
        script = ROOT / "benchmarks" / f"{name}.py"
        process = forker.start(["--tiny"], out / "log", errors=out / "errors", script=script)
        assert process.wait(600) == 0, (out / "errors").read_text()
        rows = [line.strip("|").split("|") for line in process.text.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in cells] for cells in rows if "---" not in cells[0]]

    return run


def test_host_sp(tables):
    _, *variants = tables("host_sp")
    assert [row[0] for row in variants] == [
        "host FedAvg, test every round", "ours, test every round", "ours, test every round, no personalised measure",
        "host FedAvg, no test", "host FedAvg, no test, start weights copied", "ours, no test",
        "ours, no test, channels_last: false", "ours, no test, bf16",
    ]  # fmt: skip
    assert all(float(cell) >= 0 for row in variants for cell in row[1:-1])
    accuracy = {row[0]: float(row[-1].rstrip(" %")) for row in variants}
    assert min(accuracy.values()) > 60  # the same digits in all of them, and learned
    # what is and is not tested does not change what is trained
    assert accuracy["ours, test every round"] == accuracy["ours, no test"]


def test_mixing(tables):
    _, *rows = tables("mixing")
    methods, optimizers = ([entry.name for entry in catalog.entries(group)] for group in ("methods", "optimizers"))
    running, large = "fedmr, prototypes: running", ["ResNet18: FedAvg", "ResNet18: fedmr"]
    assert [row[0] for row in rows] == [*methods, running, *optimizers, *large, f"ResNet18: {running}"]
    assert [row[2] for row in rows if row[0].endswith("FedAvg")] == ["1.000", "1.000"]
    assert all(float(row[1]) > 0 for row in rows)


def test_isic_loader(tables):
    _, *rows = tables("isic_loader")
    assert [row[0] for row in rows] == [*(f"client {k}" for k in range(6)), "test", "round"]
    *parts, total = [int(row[1]) for row in rows]
    assert total == sum(parts) == 80


def test_scaling(tables):
    rows = tables("scaling")
    assert [row[0] for row in rows] == ["runtime", "sp", "MPI, 1 worker", "transport", "loopback, TLS"]
    assert all(float(row[1]) > 0 for row in rows if row[0] not in ("runtime", "transport"))


def test_secure(tables):
    """The clear run, with masks, and with masks of a silo that is lost in each round."""
    _, *rows = tables("secure")
    assert [row[:2] for row in rows] == [["5", "clear"], ["5", "0"], ["5", "1"]]
    assert all(float(cell) > 0 for row in rows for cell in (row[2], row[4], row[6]))


def test_soak(tables):
    """Its exit code says whether the disturbed run's results are those of the other."""
    head, *rows = tables("soak")
    assert head[:3] == ["fault", "where", "times"]
    assert all(int(row[2]) > 0 and float(row[3]) > 0 for row in rows)
    assert rows


def test_each_has_a_test():
    tests = {name for name in globals() if name.startswith("test_")}
    assert FILES
    assert {f"test_{path.stem}" for path in FILES} <= tests


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_opens_with_its_commands(path):
    commands = re.findall(rf"python benchmarks/{path.name}(.*?)(?:#|\n)", path.read_text(encoding="utf-8"))
    assert commands[0].split() == []
    assert ["--tiny"] in [more.split() for more in commands]
