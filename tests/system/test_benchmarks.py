"""Each benchmark runs in its tiny form and prints its tables; the numbers mean nothing."""

import json
import os
import re
import time
from pathlib import Path

import pytest
from fl_labelskew_registry import LabelSkewError, catalog

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.fixture(scope="module")
def tables(forker, tmp_path_factory):
    """The cells of all table rows that a benchmark prints."""

    def run(name, *options):
        out = tmp_path_factory.mktemp(name)
        script = ROOT / "benchmarks" / f"{name}.py"
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(script.parent), os.environ.get("PYTHONPATH")]))}
        files = {"log": out / "log", "errors": out / "errors", "script": script}
        process = forker.start(options or ["--tiny"], environment=environment, fork_children=True, **files)
        assert process.wait(600) == 0, (out / "errors").read_text()
        rows = [line.strip("|").split("|") for line in process.text.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in cells] for cells in rows if "---" not in cells[0]]

    return run


def test_host_sp(tables):
    _, *variants = tables("host_sp", "--tiny", "--rounds", 3)
    assert [row[0] for row in variants] == [
        "host FedAvg, test every round", "ours, test every round", "ours, test every round, no personalised measure",
        "host FedAvg, no test", "host FedAvg, no test, start weights copied", "ours, no test",
        "ours, no test, channels_last: false", "ours, no test, bf16",
    ]  # fmt: skip
    assert all(float(cell) >= 0 for row in variants for cell in row[1:-1])
    accuracy = {row[0]: float(row[-1].rstrip(" %")) for row in variants}
    assert min(accuracy.values()) > 60  # all variants learn
    # tests do not change training
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
    heads = ("runtime", "transport", "clients per round")
    names = ["runtime", "sp", "MPI, 1 worker", "transport", "loopback, TLS", "clients per round", "8"]
    assert [row[0] for row in rows] == names
    assert all(float(row[1]) > 0 for row in rows if row[0] not in heads)
    assert float(rows[-1][3]) > 100  # MB


def test_clients(tables):
    _, *rows = tables("clients")
    rounds, checkpoints = rows[:4], rows[5:]
    kinds = ["stateless"] * 2 + ["private states"] * 2
    assert [row[:3] for row in rounds] == [["5", k, kind] for k, kind in zip(["20", "40"] * 2, kinds, strict=True)]
    assert all(float(row[4]) > 0 for row in rounds)
    assert [row[0] for row in checkpoints] == ["20", "40"]


def test_secure(tables):
    """A clear run, and a run with masks that loses a silo in each round."""
    _, shares, _, *rows = tables("secure")
    assert shares[:2] == ["4", "3"]
    assert all(float(cell) > 0 for cell in shares[2:])
    assert [row[:2] for row in rows] == [["4", "clear"], ["4", "1"]]
    assert all(float(row[2]) > 0 for row in rows)
    assert all(float(cell) >= 0 for row in rows for cell in (row[4], row[6]))  # the resolution of the clock is 0.01 s


def test_soak(tables):
    """The benchmark exits with 0 only if both runs have the same results."""
    head, *rows = tables("soak")
    assert head[:3] == ["fault", "target", "count"]
    assert all(int(row[2]) > 0 and float(row[3]) > 0 for row in rows)
    assert rows


def test_gpu(tables):
    """All parts, on a CPU."""
    rows = tables("gpu", "--smoke")
    heads = [i for i, row in enumerate(rows) if row[0] == "name"]
    assert len(heads) == 5
    tests, steps, rounds, workers, scale = (rows[a + 1 : b] for a, b in zip(heads, [*heads[1:], None], strict=True))
    assert tests == [["marked gpu", "all", "3", "0", "0"]]
    names = [*(entry.name for group in ("methods", "optimizers") for entry in catalog.entries(group))]
    assert {row[1] for row in steps if row[0] == "small CNN"} == {*names, "fedmr, prototypes: running"}
    assert {row[3] for row in steps if row[1] == "FedAvg"} == {"1"}
    assert [row[0] for row in rounds] == [f"{net}, {p}" for p in ("bf16", "fp32") for net in ("small CNN", "ResNet18")]
    assert [row[:2] for row in workers] == [["ResNet18", n] for n in ("sp", "1")]
    assert all(float(cell) > 0 for row in (*rounds, *workers) for cell in row[2:])
    # a run of each method with each split; all have completed the same rounds
    assert len({row[1] for row in scale}) == 10
    assert {row[2] for row in scale} == {"67.33", "74.97", "67.29", "75.51", ""}
    assert {row[6] for row in scale} == {"2 of 100"}


def test_gpu_keeps_completed_measurements(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu

    def bench(seconds):
        return gpu.Bench(smoke=True, seconds=seconds, out=tmp_path, start_time=time.monotonic(), data=None)

    bench(0).run()
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 1 + 2 + 4 + 1  # machine, tests, steps, rounds, workers; scale is skipped
    assert all(json.loads(line)["missing"] == "time limit reached" for line in lines[1:])
    bench(60).measure("steps", "small CNN", lambda: 1 / 0)
    assert "- not measured: small CNN: ZeroDivisionError" in (tmp_path / "results.md").read_text()
    for value in ("first", "second"):
        bench(60).measure("steps", "small CNN", lambda value=value: [{"s": 0.5, "of": value}])
    assert "| small CNN | 0.5 | first |" in (tmp_path / "results.md").read_text()
    kept = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(kept.replace('"device": "cpu"', '"device": "another"'))
    with pytest.raises(LabelSkewError, match=r"contains results of .*another.*; use a new folder"):
        bench(60)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_benchmark_starts_with_its_commands(path):
    assert f"test_{path.stem}" in globals() or path.stem == "flower"  # tests/system/runtimes/flower/test_benchmark.py
    commands = re.findall(rf"python benchmarks/{path.name}(.*?)(?:#|\n)", path.read_text(encoding="utf-8"))
    assert commands[0].split() == []
    assert ["--smoke" if path.stem == "gpu" else "--tiny"] in [more.split() for more in commands]
