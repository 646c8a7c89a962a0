import csv
import functools
import json
import os
import re
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from commands import call, errors
from error_messages import message, mistakes
from PIL import Image

from fl_labelskew_plugins.data import isic2019 as isic
from fl_labelskew_plugins.data.isic2019 import ISIC2019
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.partition.clients import divide
from fl_labelskew_plugins.partition.natural import Natural

dataset, load = (functools.partial(read, ISIC2019) for read in (datasets.made, datasets.load))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A prepared tree with FLamby's split."""
    folder = tmp_path_factory.mktemp("isic")
    dataset().fake(folder / "prepared", samples=120, seed=0)
    return folder


@pytest.fixture
def tree(made, tmp_path):
    """A prepared tree to spoil."""
    return shutil.copytree(made / "prepared", tmp_path / "tree")


def pictures(root):
    return sorted((root / isic.PREPARED).glob("*.jpg"))


def rewrite(file, change):
    """Rows of a CSV file, as lists, through ``change``."""
    with file.open(newline="") as stream:
        rows = list(csv.reader(stream))
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(change(rows))


def test_samples_are_the_rows_of_flamby(made):
    data = load(made / "prepared")
    with (made / "prepared" / isic.SPLIT).open() as stream:
        rows = list(csv.DictReader(stream))
    for part, fold in ((data.train, "train"), (data.test, "test")):
        chosen = [row for row in rows if row["fold"] == fold]
        assert [os.path.basename(file)[:-4] for file in part.x.files] == [row["image"] for row in chosen]
        assert part.y.tolist() == [int(row["target"]) for row in chosen]
        assert part.groups.tolist() == [int(row["center"]) for row in chosen]
        assert all(row[data.class_names[int(row["target"])]] == "1.0" for row in chosen)
        assert all(row["fold2"] == f"{fold}_{row['center']}" for row in chosen)
    assert data.train.x.shape == (len(data.train.y), 3, 200, 200)
    assert data.notes == {}


def test_six_centres_are_six_clients(made):
    clients = divide(load(made / "prepared"), Natural(Natural.Params()), clients=6, seed=0)
    assert ((clients.counts > 0) == (np.array(isic.TABLE["train"]) > 0)).all()  # the same classes are missing
    assert clients.names == list(isic.CENTRES)


def test_the_crop_is_the_middle_and_augmentation_draws_from_torch(made):
    data = load(made / "prepared", crop=64)
    file = data.train.x.files[0]
    whole = np.asarray(Image.open(file).convert("RGB"))
    top, left = (round((side - 64) / 2) for side in whole.shape[:2])
    middle = data.train.x.read(file, False)
    assert torch.equal(middle, torch.from_numpy(whole[top : top + 64, left : left + 64].copy()).permute(2, 0, 1))
    drawn = []
    for seed in (1, 1, 2, 3):
        torch.manual_seed(seed)
        drawn.append(data.train.x.read(file, True))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert all(image.shape == (3, 64, 64) and image.dtype == torch.uint8 for image in drawn)


def test_holes_are_one_to_eight_squares_half_of_the_time():
    torch.manual_seed(0)
    black = [int((isic.with_holes(torch.full((1, 64, 64), 9)) == 0).sum()) for _ in range(200)]
    assert 70 < sum(count == 0 for count in black) < 130
    assert {count for count in black if count <= 256} == {0, 256}
    assert max(black) <= 8 * 256


def test_colour_constancy_by_hand():
    pixels = np.zeros((1, 2, 3), np.uint8)
    pixels[0, 0], pixels[0, 1] = (100, 50, 0), (200, 50, 0)
    red = ((100.0**6 + 200.0**6) / 2) ** (1 / 6)
    length = np.hypot(red, 50.0)
    scale = np.sqrt(3) * np.array([red, 50.0]) / length
    expected = np.minimum(np.array([[100, 50], [200, 50]]) / scale, 255)
    got = isic.colour_constancy(pixels)
    np.testing.assert_allclose(got[0, :, :2], np.floor(expected), atol=1)
    assert (got[..., 2] == 0).all()
    grey = np.full((3, 4, 3), 77, np.uint8)
    assert abs(isic.colour_constancy(grey).astype(int) - 77).max() <= 1
    assert not isic.colour_constancy(np.zeros((2, 2, 3), np.uint8)).any()


@pytest.mark.parametrize("size", [None, (400, 300), (300, 390)])
def test_a_new_picture_is_prepared_like_training_pictures(made, tmp_path, size):
    images = load(made / "prepared", crop=64).test.x
    if size is None:
        for file in images.files[:5]:
            sample = dataset(crop=64).picture(Path(file))
            np.testing.assert_array_equal(sample, images.read(file, False).numpy())
        return
    original, kept = Image.open(images.files[0]).resize(size), tmp_path / "kept.jpg"
    original.save(tmp_path / "original.png")
    prepared = isic.prepared(original)
    assert min(prepared.size) == 224
    assert abs(max(prepared.size) / 224 - max(size) / min(size)) < 0.02
    prepared.save(kept, format="JPEG")
    sample = dataset(crop=64).picture(tmp_path / "original.png")
    np.testing.assert_array_equal(sample, images.read(str(kept), False).numpy())


def cut(file):
    file.write_bytes(file.read_bytes()[:900])


def with_value(root, column, *values):
    """Change the first row of FLamby's split from this column on."""
    end = column + len(values)
    rewrite(root / isic.SPLIT, lambda rows: [rows[0], [*rows[1][:column], *values, *rows[1][end:]], *rows[2:]])


ONE = r"1 picture \(first: ISIC_\d+\)"
UNKNOWN = f"{ONE} of a centre that is not one of FLamby's six"
BAD = {
    "broken": (lambda root: cut(pictures(root)[0]), f"{ONE} broken, or not an image"),
    "no picture": (lambda root: pictures(root)[0].unlink(), f"no picture for {ONE} of the tables"),
    "no row": (
        lambda root: shutil.copy(pictures(root)[0], root / isic.PREPARED / "ISIC_9999999.jpg"),
        r"1 picture \(first: ISIC_9999999\) without a row in the tables",
    ),
    "unknown centre": (lambda root: with_value(root, 11, "6"), UNKNOWN),
    "a centre that is not a number": (lambda root: with_value(root, 11, "\u00b2"), UNKNOWN),  # a superscript digit
    "no class": (lambda root: with_value(root, 1, *["0.0"] * 9), f"{ONE} without exactly one of the 8 classes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sample_is_counted_and_may_be_skipped(name, tree, capsys):
    spoil, line = BAD[name]
    spoil(tree)
    (found,) = mistakes(lambda: load(tree))
    assert re.search(f"{line}.*; to skip them: data_args.on_bad_sample: skip", found)
    data = load(tree, on_bad_sample="skip")
    assert len(data.train.y) + len(data.test.y) == 120 - (name != "no row")
    warnings = capsys.readouterr().err.splitlines()
    assert all(line.startswith("warning: ") and line.endswith("; skipped") for line in warnings)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda rows: [row[:-3] for row in rows], "train_test_split: has no column center, fold, fold2; use the col"),
        (lambda rows: [*rows, rows[1]], "has two rows; keep one of them"),
        (lambda rows: [*rows[:5], rows[5][:4], *rows[6:]], "line 6 is incomplete; download the file again"),
        (lambda rows: rows[:1], "has no usable sample of train and test"),
    ],
)
def test_invalid_tables(change, line, tree):
    rewrite(tree / isic.SPLIT, change)
    assert line in message(lambda: load(tree, on_bad_sample="skip"))


def test_a_missing_tree_names_the_files_their_source_and_size(tmp_path):
    for folder in (None, tmp_path):
        line = message(lambda folder=folder: dataset().check(folder, download=False))
        assert re.search(r"FLamby.* 9 GB, CC-BY-NC", line)
    assert "download: true is not supported" in message(lambda: dataset().check(tmp_path, download=True))


def test_a_silo_reads_only_its_centre(tree):
    for row in csv.DictReader((tree / isic.SPLIT).open()):
        if row["center"] != "3":
            (tree / isic.PREPARED / f"{row['image']}.jpg").unlink()
    data = load(tree, centres=(3,))
    assert set(data.train.groups) == set(data.test.groups) == {3}
    assert "no picture for" in mistakes(lambda: load(tree))[0]


def test_a_server_needs_only_pictures_of_the_test_part(tree):
    train = [row["image"] for row in csv.DictReader((tree / isic.SPLIT).open()) if row["fold"] == "train"]
    for image in train:
        (tree / isic.PREPARED / f"{image}.jpg").unlink()
    data = dataset().load_test(tree, download=False, seed=0)
    assert data.train.x.shape == (0, 3, 200, 200)
    assert len(data.test.y) == 120 - len(train)


def test_pictures_are_checked_once(tree, monkeypatch):
    load(tree)
    monkeypatch.setattr(isic.pictures, "opened", lambda file, **_: pytest.fail("checked again"))
    load(tree)
    monkeypatch.undo()
    cut(pictures(tree)[0])  # its size and time change
    assert "broken, or not an image" in mistakes(lambda: load(tree))[0]
    (tree / isic.PREPARED / isic.CHECKED).write_text("[")
    assert "broken, or not an image" in mistakes(lambda: load(tree))[0]


def test_a_deep_check_lists_the_broken_pictures_of_its_centres(tree):
    centre = {row["image"]: int(row["center"]) for row in csv.DictReader((tree / isic.SPLIT).open())}
    victims = [next(file for file in pictures(tree) if centre[file.stem] == c) for c in (0, 1)]
    for victim in victims:
        cut(victim)
    lines = dataset().broken(tree)
    assert sorted(line.partition(": is not a valid image")[0] for line in lines) == sorted(map(str, victims))
    (line,) = dataset(centres=(1,)).broken(tree)
    assert line.startswith(f"{victims[1]}: ")


def test_the_check_counts_and_names_what_is_missing(tree, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    pictures(tree)[0].unlink()
    BAD["unknown centre"][0](tree)
    rows = dataset().survey(tree)
    for what, count in (("rows without a picture", "1"), ("pictures without a row", "0")):
        assert (what, count, "0") in rows
    assert ("rows of no known centre or class", "1", "0") in rows
    result = call("data", "check", "isic2019", tree, code=1)
    assert "2279 3363 2245 606 923 97 87 330" in result.stdout
    assert "rows without a picture" in result.stderr
    (tree / isic.SPLIT).write_bytes(b"\xff\xfe\x00")
    (line,) = errors("data", "check", "isic2019", tree)
    assert ": is not a valid table (UnicodeDecodeError: " in line


def test_the_recipe_runs_and_measures_every_centre(made, tmp_path):
    few = (f"data_args.data_cache_dir={made / 'prepared'}", "train_args.comm_round=1", "train_args.epochs=1")
    settings = [word for setting in (*few, "data_args.crop=32") for word in ("--set", setting)]
    result = call("run", "fedmr_isic2019", "--run-dir", tmp_path / "run", "--host", "none", *settings)
    assert result.stderr.count("warning: model") == result.stderr.count("training from scratch") == 1
    assert re.search(r"accuracy, each client's tests +(\w+ \d+\.\d(, )?){6}\n", result.stdout)
    (line,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    sizes = np.bincount(load(made / "prepared").test.groups)
    assert np.dot(line["client_accuracy"], sizes) / sizes.sum() == pytest.approx(line["accuracy"])
    assert all(0 <= value <= 1 for value in line["client_balanced_accuracy"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["client_accuracy"] == line["client_accuracy"]
    assert summary["balanced_last_mean"] == line["balanced_accuracy"]
