"""Confusion matrices of final models in reports: as text, and on the page."""

import json

import numpy as np
import pytest
from commands import call, errors
from run_folders import folder, resolved

from fl_labelskew_plugins.studies import finished
from fl_labelskew_plugins.studies.confused import Confusion, summed


def record(path, counts, seed=0, method="fedavg", names=("cat", "a,b", "<i>T-shirt</i>")):
    folder(path, resolved(seed, method), [0.5])
    rows = [["class", *names], *([name, *row] for name, row in zip(names, counts, strict=True))]
    text = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    (path / "confusion.csv").write_text(text)
    (path / "environment.json").write_text(json.dumps({"class_names": names}))
    return path


@pytest.fixture
def runs(tmp_path):
    """Two seeds of FedAvg, and FedRS without a matrix."""
    path = tmp_path / "runs"
    path.mkdir()
    record(path / "a0", [[9, 1, 0], [2, 2, 0], [0, 0, 0]], 0)
    record(path / "a1", [[8, 0, 2], [0, 4, 0], [0, 0, 0]], 1)
    folder(path / "b0", resolved(method="fedrs"), [0.5])
    return path


def test_matrices_are_summed_over_the_seeds(runs):
    found = summed(finished.read_all([runs / "a0", runs / "a1"])[0])
    assert found.counts.tolist() == [[17, 1, 2], [2, 6, 0], [0, 0, 0]]
    assert np.nan_to_num(found.shares, nan=-1).tolist() == [[85, 5, 10], [25, 75, -1], [-1, -1, -1]]
    assert found.pairs() == [("a,b", "cat", 2, 25), ("cat", "<i>T-shirt</i>", 2, 10), ("cat", "a,b", 1, 5)]
    assert summed(finished.read_all([runs / "b0"])[0]) is None


def test_matrices_as_text(runs):
    _, *parts = call("report", runs, "--confusion").output.split("\n\n")
    assert parts[0].splitlines() == [
        "fedavg, iid: final model, 28 test samples of 2 runs; % of a class (row)",
        "predicted as (column)",
        "                    0    1    2",
        "0 cat              85    5   10",
        "1 a,b              25   75    .",
        "2 <i>T-shirt</i>    .    .    .",
    ]
    assert parts[1].startswith("fedrs, iid: no confusion.csv\n")


def test_text_of_many_classes_is_the_pairs_confused_most(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 30, (100, 100)) + 3000 * np.eye(100, dtype=int)
    counts[7, 93] = 900
    record(tmp_path / "a", counts.tolist(), names=[f"class number {c} of many, with a long name" for c in range(100)])
    output = call("report", tmp_path / "a", "--confusion", "--html", tmp_path / "a.html").output
    title, rest, head, first, *others = output.split("\n\n")[1].splitlines()[:13]
    assert f"{title} {rest}" == (
        f"fedavg, iid: most confused classes of 100, final model, {counts.sum()} test samples of 1 run"
    )
    assert head.split() == ["class", "predicted", "as", "samples", "%", "of", "the", "class"]
    share = 100 * 900 / counts[7].sum()
    assert " ".join(first.split()).endswith(f"900 {share:.1f}")
    assert first.startswith("class number 7 of many")
    assert len(others) == 9
    page = (tmp_path / "a.html").read_text()
    assert page.count("<td>class number 7 of many, with a long name</td>") >= 1
    assert len(page) < 200_000


@pytest.mark.parametrize("classes", [2, 10, 12])
def test_a_matrix_has_room_on_80_letters(tmp_path, classes):
    record(
        tmp_path / "a", np.full((classes, classes), 10**6).tolist(), names=[f"{c} " + "x" * 60 for c in range(classes)]
    )
    lines = call("report", tmp_path / "a", "--confusion").output.split("\n\n")[1].splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 + 1 + classes


def test_the_page_shows_matrices_and_escapes_names(runs, tmp_path):
    call("report", runs, "--html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<h2>Confusion matrices</h2>" in page
    assert 'title="cat: 85.00">85<' in page
    assert "&lt;i&gt;T-shirt&lt;/i&gt;" in page
    assert "<i>T-shirt" not in page


def test_confusion_needs_a_matrix_and_text(runs):
    assert errors("report", runs / "b0", "--confusion") == [
        "--confusion: no run has a confusion.csv; use runs that this version has finished, or "
        "`labelskew evaluate RUN DATA`"
    ]
    assert errors("report", runs, "--confusion", "--format", "csv") == [
        "--format csv: --confusion prints text; use --format table"
    ]


@pytest.mark.parametrize(
    "content", ["", "class,a\n", "class,a\na,1,2\n", "class,a\na,-1\n", "class,a\na,1e3\n", f"class,a\na,{2**60}\n"]
)
def test_a_changed_file_is_no_matrix(runs, content):
    (runs / "a0" / "confusion.csv").write_text(content)
    assert list(finished.read(runs / "a0").confusion) == []


def test_pairs_of_a_perfect_model():
    assert Confusion(["a", "b"], np.eye(2, dtype=int), 1).pairs() == []
