import re
from functools import partial
from pathlib import Path

import commands
import datasets
import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import Dataset, Images, LabelSkewError, catalog
from pydantic import BaseModel

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.partition.clients import divide
from fl_labelskew_plugins.partition.natural import Natural

DOCS = Path(__file__).parents[3] / "docs" / "data.md"
COPIES = {  # name: shape of a sample, classes
    "mnist": ((1, 28, 28), 10),
    "fashion_mnist": ((1, 28, 28), 10),
    "emnist": ((1, 28, 28), 47),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "svhn": ((3, 32, 32), 10),
    "image_folder": ((3, 32, 32), 4),
    "cinic10": ((3, 32, 32), 10),
    "tiny_imagenet": ((3, 64, 64), 200),
    "imagenet_subset": ((3, 64, 64), 12),
    "hyperkvasir": ((3, 128, 128), 23),
    "odir": ((3, 128, 128), 8),
    "isic2019": ((3, 200, 200), 8),
    "femnist": ((1, 28, 28), 62),
    "shakespeare": ((80,), 81),
    "table": ((8,), 3),
}
call = partial(commands.call, "data")


def error(*args, code=2):
    (line,) = commands.errors("data", *args, code=code)
    return line


def load(name, folder):
    return datasets.load(catalog.load("datasets", name), folder)


def nearest_mean(data):
    """Accuracy on the test part of the nearest class mean in training."""
    parts = [
        np.stack([part.x.read(f, False) for f in part.x.files]) if isinstance(part.x, Images) else part.x
        for part in (data.train, data.test)
    ]
    train, test = (x.reshape(len(x), -1).astype(np.float32) for x in parts)
    known = np.unique(data.train.y)
    means = np.stack([train[data.train.y == c].mean(axis=0) for c in known])
    distances = (test**2).sum(1)[:, None] - 2 * test @ means.T + (means**2).sum(1)
    return float((known[distances.argmin(axis=1)] == data.test.y).mean())


@pytest.mark.parametrize("name", COPIES)
def test_a_small_copy_is_complete_and_can_be_learnt(tmp_path, name):
    shape, classes = COPIES[name]
    out = tmp_path / "a b"
    said = call("fake", name, "--out", out).stdout
    assert f"--set data_args.dataset={name} --set 'data_args.data_cache_dir={out}'" in said.splitlines()[-1]
    said = call("check", name, out, "--deep").stdout
    assert said.splitlines()[-1] == f"data set {name} in {out}: a small copy, complete, every file opened"
    assert [path.name for path in tmp_path.iterdir()] == ["a b"]
    data, default = load(name, out), {"isic2019": 240, "femnist": 1000, "shakespeare": 1000, "table": 300}
    assert len(data.train.y) + len(data.test.y) == default.get(name, max(300, 4 * classes))
    for part in (data.train, data.test):
        assert (part.x.shape[1:], part.y.dtype) == (shape, np.int64)
        assert name in default or set(part.y) == set(range(classes))
    assert len(data.class_names) == len(set(data.class_names)) == classes
    assert name == "shakespeare" or nearest_mean(data) > 0.85
    alone = catalog.load("datasets", name)().load_test(out, download=False, seed=0)
    assert alone.test.y.tolist() == data.test.y.tolist()
    if data.train.groups is not None and name != "isic2019":  # label skew
        counts = divide(data, Natural(), clients=20, seed=0).counts
        assert (counts > 0).sum(axis=1).max() < 0.6 * classes


@pytest.mark.parametrize("name", ["cifar10", "odir", "femnist", "shakespeare", "table"])
def test_the_same_seed_writes_the_same_files(tmp_path, name):
    kind = catalog.load("datasets", name)
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        kind().fake(tmp_path / folder, samples=200, seed=seed)
    files = [{path.name: path.read_bytes() for path in (tmp_path / f).rglob("*.*")} for f in "abc"]
    if name == "cifar10":  # a .npz file holds the time
        files = [load(name, tmp_path / folder).train.x.tobytes() for folder in "abc"]
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("name", ["mnist", "svhn"])
def test_a_small_copy_belongs_to_one_data_set(tmp_path, name):
    kind = catalog.load("datasets", name)
    kind().fake(tmp_path, samples=4 * len(kind().class_names), seed=0)
    kind().check(tmp_path, download=False)
    text = message(lambda: load("cifar10", tmp_path))
    assert text.startswith(f"{tmp_path / fakes.ARRAYS}: was not written for data set CIFAR10")
    content = bytearray((tmp_path / fakes.ARRAYS).read_bytes())
    content[5000:5200] = bytes(200)  # as long as it was
    (tmp_path / fakes.ARRAYS).write_bytes(content)
    assert "is not a valid .npz archive" in message(lambda: load(name, tmp_path))
    call("check", name, tmp_path)
    result = call("check", name, tmp_path, "--deep", code=1)
    assert f"{tmp_path / fakes.ARRAYS}: is not a valid .npz archive" in result.stdout.splitlines()[-1]


def test_a_small_copy_of_groups(tmp_path):
    groups = ("--set", "groups=[north,south,coast]")
    call("fake", "image_folder", "--out", tmp_path / "a", *groups)
    data = load("image_folder", tmp_path / "a")
    assert data.group_names == ["coast", "north", "south"]
    for part in (data.train, data.test):
        counts = np.array([np.bincount(part.y[part.groups == g], minlength=4) for g in range(3)])
        assert (counts.sum(1) > 0).all()
        assert (counts.max(0) > counts.sum(0) / 2).all()  # skewed
    call("fake", "table", "--out", tmp_path / "t", "--set", "group=hospital", "--set", "label=diagnosis")
    call("check", "table", tmp_path / "t", "--deep", "--set", "group=hospital", "--set", "label=diagnosis")
    call("fake", "image_folder", "--out", tmp_path / "b", "--set", "groups=[../x]", code=2)
    assert not (tmp_path / "x").exists()


def test_arrays_are_a_small_copy_without_the_mark(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("fake", "mnist", "--out", ".")
    assert sorted(path.name for path in tmp_path.iterdir()) == [fakes.MARK, fakes.ARRAYS]
    (tmp_path / fakes.MARK).unlink()
    assert call("check", "mnist", ".").stdout.splitlines()[-1].endswith(": a small copy, complete")
    (tmp_path / fakes.ARRAYS).unlink()
    assert "train-images-idx3-ubyte (missing)" in error("check", "mnist", ".", code=1)


@pytest.mark.parametrize(
    ("name", "samples", "says"),
    [
        ("mnist", 5, "--samples 5: too few for 10 classes; use at least 20"),
        ("table", 59, "--samples 59: too few for 3 classes; use at least 60"),
        ("femnist", 3, "data set femnist: 3 samples are too few; use at least 4, for two users"),
        ("isic2019", 9, "data set isic2019: 9 samples are too few; use at least 73"),
    ],
)
def test_too_few_samples(tmp_path, name, samples, says):
    assert error("fake", name, "--out", tmp_path / "x", "--samples", samples) == says
    assert not (tmp_path / "x").exists()


def test_mistakes(tmp_path):
    for words in (("fake", "cifar", "--out", tmp_path / "x"), ("check", "cifar", tmp_path)):
        assert error(*words).startswith("unknown name 'cifar' in datasets; known: cifar10")
    assert error("check", "mnist", tmp_path / "none").endswith("does not exist; use the folder of data set mnist")
    assert "data_cache_dir is not set" in error("check", "mnist")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert "full: is not empty" in error("fake", "mnist", "--out", tmp_path / "full")
    assert "cannot be written: Not a directory" in error("fake", "mnist", "--out", tmp_path / "full" / "file")
    assert error("fake", "digits", "--out", tmp_path / "x") == "data set Digits: no small copy can be written of it"
    lines = call("fake", "emnist", "--out", tmp_path / "x", "--set", "spit=1", "--set", "split=a", "--set", "b", code=2)
    assert lines.stderr.splitlines() == [
        "error: --set b: the value is missing; use KEY=VALUE",
        "error: --set spit: unknown key; allowed: split; did you mean split?",
        "error: --set split: 'a' is unknown; allowed: byclass, bymerge, balanced, letters, digits, mnist",
    ]


def test_the_docs_name_every_data_set():
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", DOCS.read_text("utf-8"), re.MULTILINE)}
    ours = [e for e in catalog.entries("datasets") if e.distribution == "fl-labelskew-plugins"]
    assert {entry.name for entry in ours} == set(rows)


def test_a_plugin_with_only_a_check_is_surveyed_by_its_check(tmp_path):
    class Mine(Dataset):
        class Params(BaseModel):
            pass

        def check(self, data_dir, *, download):
            if not (data_dir / "file").exists():
                raise LabelSkewError("no file")

    assert Mine().survey(tmp_path) == [("files", "missing", "no file")]
    assert fakes.wrong(Mine().survey(tmp_path))
    (tmp_path / "file").write_text("")
    assert not fakes.wrong(Mine().survey(tmp_path))
