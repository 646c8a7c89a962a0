"""Predictions: rows of pictures and arrays, in files and from Python, and unreadable inputs."""

import csv
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from commands import call, errors
from fl_labelskew_registry import LabelSkewError
from pandas.testing import assert_frame_equal

from fl_labelskew_plugins.data.image_folder import images_in
from fl_labelskew_plugins.data.pictures import decode
from fl_labelskew_plugins.trained import inputs
from fl_labelskew_plugins.trained.network import load


def by_hand(run, x, names):
    """File, class and probability of uint8 pictures, by the run's network and its metadata."""
    about = load(run.folder / "model.safetensors").about
    mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (about.mean, about.std))
    with torch.no_grad():
        chances = torch.softmax(run.model(torch.from_numpy((x / 255 - mean) / std).float()), 1)
    best = chances.sort(1, descending=True)
    return [
        [name, *(cell for c, p in zip(cs, ps, strict=True) for cell in (about.class_names[c], pytest.approx(p)))]
        for name, cs, ps in zip(names, best.indices[:, :2].tolist(), best.values[:, :2].tolist(), strict=True)
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_one_row_per_picture_in_every_format(pictures, tmp_path, form):
    data, run = pictures
    files = images_in(data / "test" / "star") + images_in(data / "test" / "cross")
    out = tmp_path / f"rows.{form}"
    told = call("predict", run.folder, data / "test" / "star", *files[-6:], "--out", out, "--top", 2, "--batch-size", 4)
    assert told.output == f"written: {out}, {len(files)} rows\n"
    expected = by_hand(run, np.stack([decode(f, size=16, channels=3) for f in files]), map(str, files))
    if form == "csv":
        head, *rows = csv.reader(out.open())
        rows = [[float(cell) if i in (2, 4) else cell for i, cell in enumerate(row)] for row in rows]
    elif form == "jsonl":
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        head, rows = [*lines[0]], [[*line.values()] for line in lines]
    else:
        frame = pd.read_parquet(out)
        head, rows = [*frame.columns], frame.to_numpy().tolist()
    assert head == ["file", "class", "probability", "class_2", "probability_2"]
    assert rows == expected
    assert os.listdir(tmp_path) == [out.name]


def test_rows_are_printed_without_an_output_file(pictures):
    data, run = pictures
    (first, *_) = images_in(data / "test")
    lines = call("predict", run.folder, first).output.splitlines()
    assert lines[0] == "file,class,probability"
    name, _, chance = lines[1].split(",")
    assert (name, len(chance)) == (str(first), len("0.1234"))


def test_unreadable_files_are_listed_and_the_others_predicted(pictures, arrays, tmp_path):
    data, run = pictures
    mixed = tmp_path / "in"
    shutil.copytree(data / "test" / "star", mixed / "pictures")
    (mixed / "pictures" / "0.png").write_bytes(b"no picture")
    np.savez(mixed / "x.npz", x=np.zeros((2, 5), np.uint8))
    told = call("predict", run.folder, mixed / "pictures", mixed / "x.npz", "--out", tmp_path / "r.csv", code=1)
    sound = len(images_in(data / "test" / "star"))
    assert told.stdout == f"written: {tmp_path / 'r.csv'}, {sound} rows\n"
    first, second, last = told.stderr.splitlines()
    assert first.startswith(f"{mixed}/pictures/0.png: is not a valid image")
    assert second == f"{mixed}/x.npz: has shape (2, 5); use (N, 3, 16, 16), as the model was trained on"
    assert last == f"error: 2 files of {sound + 2} could not be read"


def test_mistakes_are_one_line_errors(pictures, arrays, tmp_path):
    data, run = pictures
    (tmp_path / "empty").mkdir()
    assert errors("predict", run.folder, tmp_path / "gone", tmp_path / "empty") == [
        f"{tmp_path}/gone: does not exist; give pictures, folders of them, .npz files or tables",
        f"{tmp_path}/empty: has no pictures; name .npz files and tables one by one",
    ]
    for folder, words, says in (
        (run.folder, ["--out", tmp_path / "x.xlsx"], "unknown format; allowed: a name with .csv, .jsonl, .parquet"),
        (run.folder, ["--top", 5], "--top 5: the model has 4 classes; allowed: 1 to 4"),
        (run.folder, ["--out", tmp_path / "gone" / "x.csv"], "x.csv: cannot be written: No such file or directory"),
        (arrays[1].folder, [], "samples are not picture files; use .npz files with x of shape (N, 6)"),
    ):
        (line,) = errors("predict", folder, data / "test", *words)
        assert line.endswith(says)


def test_arrays_by_number_from_the_command_line_and_python(arrays, tmp_path):
    file, run = arrays
    x = np.load(file)["x_test"]
    np.savez(tmp_path / "new.npz", x=x)
    rows = run.predict(x, top=3)
    assert rows.shape == (60, 6)
    assert rows["class"].tolist() == [str(c) for c in np.load(file)["y_test"]]  # it is easy
    assert rows.filter(like="prob").sum(axis=1).tolist() == pytest.approx([1] * 60)
    # another batch size may change the last digits
    assert_frame_equal(run.predict(torch.from_numpy(x), top=3, batch_size=7), rows)
    of_file = run.predict(tmp_path / "new.npz", top=3, batch_size=16)
    assert of_file.index[:2].tolist() == [f"{tmp_path}/new.npz[0]", f"{tmp_path}/new.npz[1]"]
    assert_frame_equal(of_file.reset_index(drop=True), rows)
    assert run.predict([str(tmp_path / "new.npz")], best=True).shape == (60, 2)
    assert run.predict(x[0]).shape == (1, 2)
    assert run.predict(x[:0]).shape == (0, 2)
    with pytest.raises(LabelSkewError, match="--top 0: the model has 3 classes"):
        run.predict(x, top=0)
    (tmp_path / "bad.npz").write_bytes(b"x")
    with pytest.raises(LabelSkewError, match=r"is not a valid \.npz archive"):
        run.predict([tmp_path / "new.npz", tmp_path / "bad.npz"])


def test_pictures_from_python(pictures):
    data, run = pictures
    files = images_in(data / "test")
    rows = run.predict(data / "test", client=1)
    assert rows.index.tolist() == list(map(str, files))
    x = torch.from_numpy(np.stack([decode(f, size=16, channels=3) for f in files]))
    assert rows["class"].tolist() == run.predict(x, client="1")["class"].tolist()
    assert set(rows["class"]) < set(run.predict(data / "test")["class"]) | {"circle", "cross", "square", "star"}
    assert torch.equal(run.best.classifier.weight, load(run.folder / "best.safetensors").network.classifier.weight)


@pytest.mark.parametrize(
    ("shape", "given", "becomes"),
    [
        ([1, 8, 9], (5, 8, 9), (5, 1, 8, 9)),
        ([3, 8, 9], (5, 8, 9, 3), (5, 3, 8, 9)),
        ([3, 8, 9], (3, 8, 9), (1, 3, 8, 9)),
        ([72], (5, 8, 9), (5, 72)),
        ([72], (72,), (1, 72)),
        ([3, 8, 9], (5, 9, 8, 3), None),
        ([72], (5, 71), None),
        ([72], (), None),
    ],
)
def test_axes_are_reordered_for_the_model(arrays, shape, given, becomes):
    known = load(arrays[1].folder / "model.safetensors").about
    about = known.model_copy(update={"input_shape": shape, "mean": [0.0], "std": [1.0]})
    x = np.arange(np.prod(given, dtype=int), dtype=np.float64).reshape(given)
    if becomes is None:
        with pytest.raises(LabelSkewError, match=r"x: has shape .*; use \(N, "):
            inputs.fitted(about, x, "x")
        return
    fitted = inputs.fitted(about, x, "x")
    assert (fitted.shape, fitted.dtype) == (becomes, np.float32)
    assert sorted(fitted.ravel()) == sorted(x.ravel())


@pytest.mark.parametrize(
    ("dtype", "mean", "x", "warns"),
    [
        ("float32", 0.5, np.linspace(0, 1, 12), False),
        ("float32", 0.5, np.linspace(0, 255, 12), True),
        ("float32", 0.5, np.linspace(0, 255, 12).astype(np.uint8), True),
        ("float32", 0.5, np.full(12, 0.5), True),
        ("float32", 0.5, np.linspace(-0.1, 0.4, 12), False),
        ("float32", 0.5, np.linspace(0, 1, 12) + 100, True),
        ("uint8", 0.5, np.linspace(0, 255, 12).astype(np.uint8), False),
        ("uint8", 0.5, np.linspace(0, 255, 12), False),
        ("uint8", 0.5, np.linspace(0, 1, 12), True),
        ("float32", 0.0, np.linspace(0, 255, 12), False),  # mean 0 and std 1: training took samples as they are
    ],
)
def test_values_of_another_scale_cause_a_warning(arrays, capsys, dtype, mean, x, warns):
    known = {"dtype": dtype, "mean": [mean], "std": [0.29 if mean else 1.0], "input_shape": [3]}
    about = load(arrays[1].folder / "model.safetensors").about.model_copy(update=known)
    inputs.fitted(about, x.reshape(4, 3), "x.npz")
    told = capsys.readouterr().err
    assert told.startswith("warning: x.npz: scale differs from training: mean ") == warns
    assert bool(told) == warns


def test_invalid_numbers_are_one_line_errors(arrays):
    about = load(arrays[1].folder / "model.safetensors").about
    text = about.model_copy(update={"mean": [], "std": [], "dtype": "uint8"})
    for said, x, says in (
        (about, np.full((2, 6), "a"), "has type <U1; use numbers"),
        (about, np.array([[1.0] * 6, [np.nan] * 6]), "sample 1 is not finite; use finite numbers"),
        (about, np.full((1, 6), 1e300), "sample 0 is not finite"),
        (text, np.full((2, 6), 300), "contains int64, but the model takes numbers of characters; use uint8"),
        (text, np.full((2, 6), 0.5), "contains float64, but the model takes"),
    ):
        with pytest.raises(LabelSkewError, match=says):
            inputs.fitted(said, x, "x")
    assert inputs.fitted(text, np.full((2, 6), 9), "x").dtype == np.uint8
