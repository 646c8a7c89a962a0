"""Pictures of several runs' diagnostics, of folders made by hand."""

import json
import math

import numpy as np
import pytest
import torch
from commands import call, errors
from run_folders import folder, resolved
from safetensors.torch import load_file, save_file

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.points import Points
from fl_labelskew_plugins.diagnostics.watch import KINDS

VALUES = {"norm": 2.0, "cosine": 0.5, "median": 3.0, "missing": 0.1, "observed": 0.2, "own": 0.3, "exceeded": 0.25}
VALUES |= {"paper": 4.0, "code": 5.0, "variance": 6.0}


def record(path, seed=0, method="fedavg", partition="pcdd", scale=1.0):
    """A run of two rounds with all diagnostics."""
    folder(path, resolved(seed, method, partition), [0.5, 0.6])
    (path / "partition.json").write_text(json.dumps({"clients": ["0", "1"], "counts": [[4, 0], [0, 9]]}))
    (path / "diagnostics").mkdir()
    generator = torch.Generator().manual_seed(seed)
    for name, kind in KINDS.items():
        lines = [
            {"round": r, "client": k, "held": [0], "recall": [0.9, 0.1]}
            | {key: scale * (1 + r) * (1 + k) * value for key, value in VALUES.items()}
            for r in range(2)
            for k in range(2)
        ]
        lines.append({"round": 1, "client": None, "norm": 1.0, "recall": [0.5, 0.5]})
        (path / "diagnostics" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if issubclass(kind, Points):
            kept = {"client": torch.tensor(1), "labels": torch.arange(20) % 2}
            for stage in kind.stages:
                kept[f"{stage}.points"] = torch.randn(20, 3 if kind.three_d else 2, generator=generator)
                kept[f"{stage}.proxies"] = torch.randn(2, 2, generator=generator)
            save_file(kept, path / "diagnostics" / f"{name}.safetensors")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of FedAvg and one of FedRS under pcdd, and FedAvg under iid."""
    path = tmp_path_factory.mktemp("runs")
    record(path / "a0", 0)
    record(path / "a1", 1, scale=2.0)
    record(path / "b0", 0, "fedrs", scale=3.0)
    record(path / "c0", 0, partition="iid", scale=4.0)
    return path


def test_curves_are_means_over_clients_and_then_over_seeds(runs, tmp_path, drawn):
    call("report", runs, "--plot", tmp_path / "a.pdf", "--diagnostic", "client_drift")
    (picture,) = drawn
    titles = [axes.get_title() for axes in picture.axes]
    assert titles == ["pcdd", "iid", "", "", "", ""]  # a row of charts for each number
    rows = [axes.get_ylabel() for axes in picture.axes[::2]]
    assert rows == ["norm of the update: clients", "norm of the update: global model", "cosine with the global update"]
    fedavg, fedrs = picture.axes[0].lines
    # clients have 2 and 4 with the first seed, 4 and 8 with the second, and twice as much in round 2
    assert (fedavg.get_xdata().tolist(), fedavg.get_ydata().tolist()) == ([1, 2], [4.5, 9])
    assert fedrs.get_ydata().tolist() == [9, 18]
    ends = picture.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (pytest.approx(4.5 - math.sqrt(4.5)), pytest.approx(9 + math.sqrt(18)))
    assert picture.axes[4].lines[1].get_ydata().tolist() == [2.25, 4.5]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["fedavg", "fedrs"]
    looks = plots.looks({"fedavg": "fedavg", "fedrs": "fedrs"})
    assert [line.get_color() for line in (fedavg, fedrs)] == [plots.COLOURS[looks[m].colour] for m in looks]


@pytest.mark.parametrize("name", KINDS)
def test_every_diagnostic_of_several_runs_is_drawn(runs, tmp_path, name):
    file = tmp_path / "a.svg"
    call("report", runs, "--only", "pcdd", "--diagnostic", name, "--width", "3.25", "--plot", file)
    text = file.read_text()
    assert 'width="234pt"' in text  # 3.25 inches
    words = ("training samples", "client") if name == "label_heatmap" else ("fedavg", "fedrs")
    assert all(f">{word}</text>" in text for word in words)


def test_panels_are_of_the_first_run_of_a_row(runs, tmp_path, drawn):
    call("report", runs, "--only", "pcdd", "--plot", tmp_path / "a.png", "--diagnostic", "tsne")
    (picture,) = drawn
    assert [axes.get_title() for axes in picture.axes] == ["fedavg", "fedrs", "", ""]
    assert [axes.get_ylabel() for axes in picture.axes[::2]] == ["client after training", "global model"]
    hollow = [len(points.get_facecolor()) == 0 for points in picture.axes[0].collections]
    assert hollow == [True, False]  # client 1 lacks class 0
    assert len(np.concatenate([points.get_offsets() for points in picture.axes[0].collections])) == 20


def test_runs_without_the_diagnostic_are_listed(runs, tmp_path):
    bare = folder(tmp_path / "bare", resolved(method="map", partition="pcdd"), [0.5])
    words = ["--plot", tmp_path / "a.pdf", "--diagnostic"]
    assert errors("report", runs / "a0", bare, *words, "client_drift") == [
        f"--diagnostic client_drift: not recorded by {bare}; recorded by {runs / 'a0'}; "
        "use runs of a recipe with tracking_args.diagnostics: [client_drift]"
    ]
    (line,) = errors("report", bare, *words, "tsne")
    assert "no run has it; use runs of" in line
    (line,) = errors("report", bare, *words, "label_heatmap")
    assert line == f"{bare / 'partition.json'}: cannot be read (No such file or directory)"
    (line,) = errors("report", bare, *words, "client_drft")
    assert line.endswith("did you mean client_drift?")
    (line,) = errors("report", bare, "--diagnostic", "tsne")
    assert line == "--diagnostic tsne: needs --plot; use it with --plot FILE"
    assert not (tmp_path / "a.pdf").exists()


DRIFT = "diagnostics/client_drift.jsonl"


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("client_drift", DRIFT, b'{"round": "x", "client": 0, "norm": 1}\n'),
        ("client_drift", DRIFT, b'{"round": 0}\n'),
        ("client_drift", DRIFT, b'{"round": 0, "client": null, "norm": "x"}\n'),
        ("client_drift", DRIFT, b'{"round": 0, "client": null, "norm": 1' + b"0" * 400 + b"}\n"),
        ("tsne", "diagnostics/tsne.safetensors", b"{}"),
        *(
            ("label_heatmap", "partition.json", b'{"counts": %b}' % counts)
            for counts in (b"[[]]", b"[[1e400]]", b"[[10000000000000000000]]", b"[[-1]]", b"[1]", b"[" * 100_000)
        ),
    ],
)
def test_damaged_files_are_one_line(tmp_path, name, file, content):
    path = record(tmp_path / "a")
    (path / file).write_bytes(content)
    (line,) = errors("report", path, "--plot", tmp_path / "a.pdf", "--diagnostic", name)
    assert line.startswith(f"{path / file}: is not a valid file of a run (")


@pytest.mark.parametrize(
    "changed",
    [
        {"local.points": torch.zeros(20, 1)},
        {"local.points": torch.zeros(19, 2)},
        {"labels": torch.full((20,), 2)},
        {"labels": torch.zeros(20)},
        {"client": torch.tensor([0, 1])},
        {"client": torch.tensor(2)},
    ],
)
def test_damaged_points_are_one_line(tmp_path, changed):
    path = record(tmp_path / "a")
    file = path / "diagnostics" / "tsne.safetensors"
    save_file(load_file(file) | changed, file)
    (line,) = errors("report", path, "--plot", tmp_path / "a.pdf", "--diagnostic", "tsne")
    assert line.startswith(f"{file}: is not a valid file of a run (")
