"""SVHN's MATLAB files and EMNIST's splits: what torchvision reads, and broken ones."""

import gzip

import numpy as np
import pytest
import torchvision
from datasets import load
from mistakes import message
from scipy.io import savemat

from fl_labelskew_plugins.data.idx import EMNIST, MNIST, SPLITS, idx_shape, write_idx
from fl_labelskew_plugins.data.svhn import SVHN


def test_torchvision_reads_the_same_svhn(tmp_path, monkeypatch):
    SVHN().fake(tmp_path, samples=60, seed=0)
    monkeypatch.setattr(torchvision.datasets.SVHN, "_check_integrity", lambda self: True)
    data = load(SVHN, tmp_path)
    for part in ("train", "test"):
        theirs = torchvision.datasets.SVHN(str(tmp_path), split=part)
        np.testing.assert_array_equal(getattr(data, part).x, theirs.data)
        np.testing.assert_array_equal(getattr(data, part).y, theirs.labels)


IMAGES, LABELS = np.zeros((32, 32, 3, 4), np.uint8), np.array([[1], [2], [10], [9]], np.uint8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"X": IMAGES}, "X or y is missing; use X of uint8 and shape (32, 32, 3, N), and its labels y"),
        ({"X": IMAGES[:31], "y": LABELS}, "X is uint8 of shape (31, 32, 3, 4)"),
        ({"X": IMAGES.astype(float), "y": LABELS}, "X is float64 of shape"),
        ({"X": IMAGES, "y": LABELS[:3]}, "3 labels for 4 images"),
        ({"X": IMAGES, "y": LABELS + 1}, "has label 11; use labels from 1 to 10"),
        ({"X": IMAGES, "y": LABELS.astype(np.int16) - 5}, "has label -4"),
        ({"X": IMAGES, "y": np.array(["a", "b", "c", "d"])}, "4 labels for 4 images"),
    ],
)
def test_svhn_files_that_do_not_fit(tmp_path, content, says):
    SVHN().fake(tmp_path, samples=40, seed=0)
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": IMAGES, "y": LABELS})
    assert load(SVHN, tmp_path).test.y.tolist() == [1, 2, 0, 9]
    savemat(path, content)
    assert message(lambda: load(SVHN, tmp_path)).startswith(f"{path}: {says}")


def test_svhn_files_that_are_none(tmp_path):
    SVHN().fake(tmp_path, samples=40, seed=0)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for content in (b"", b"<html>", whole[:300], whole[:-2000], b"MATLAB 7.3 MAT-file" + bytes(400)):
        path.write_bytes(content)
        assert f"{path}: " in message(lambda: load(SVHN, tmp_path))
    path.unlink()
    text = message(lambda: SVHN().check(tmp_path, download=False))
    assert "data set SVHN: no train_32x32.mat in" in text
    assert "http://ufldl.stanford.edu/housenumbers/, 182 and 64 MB, or download: true" in text


def test_svhn_downloads_both_files(tmp_path, monkeypatch):
    splits = []
    monkeypatch.setattr(torchvision.datasets, "SVHN", lambda root, *, split, download: splits.append(split))
    assert "no train_32x32.mat, test_32x32.mat in" in message(lambda: SVHN().load(tmp_path, download=True, seed=0))
    assert splits == ["train", "test"]


@pytest.mark.parametrize("split", SPLITS)
def test_torchvision_reads_the_same_emnist(tmp_path, split):
    kind = EMNIST(EMNIST.Params(split=split))
    kind.fake(tmp_path, samples=150, seed=0)
    data = kind.load(tmp_path, download=False, seed=0)
    for part in ("train", "test"):
        theirs = torchvision.datasets.EMNIST(str(tmp_path), split=split, train=part == "train")
        np.testing.assert_array_equal(getattr(data, part).x[:, 0], theirs.data.numpy())
        first = split == "letters"
        np.testing.assert_array_equal(getattr(data, part).y + first, theirs.targets.numpy())
        assert data.class_names == theirs.classes[first:]
    other = "digits" if split != "digits" else "mnist"
    text = message(lambda: load(EMNIST, tmp_path, split=other))
    assert f"no emnist-{other}-train-images-idx3-ubyte[.gz]" in text
    assert "560 MB" in text


def test_emnist_labels_out_of_range(tmp_path):
    EMNIST(EMNIST.Params(split="letters")).fake(tmp_path, samples=60, seed=0)
    path = tmp_path / "EMNIST" / "raw" / "emnist-letters-test-labels-idx1-ubyte"
    for bad in (0, 27):
        labels = np.full(26, 5, np.uint8)
        labels[3] = bad
        write_idx(path, labels)
        line = message(lambda: load(EMNIST, tmp_path, split="letters"))
        assert line == f"{path}: has label {bad}; use labels from 1 to 26"


def test_emnist_download_fetches_the_split(tmp_path, monkeypatch):
    def write(root, *, split, train, download):
        EMNIST(EMNIST.Params(split=split)).fake(tmp_path / "root", samples=60, seed=0)

    monkeypatch.setattr(torchvision.datasets, "EMNIST", write)
    kind = EMNIST(EMNIST.Params(split="mnist"))
    assert len(kind.load(tmp_path / "root", download=True, seed=0).test.y) == 12


def test_headers_are_read_without_the_data(tmp_path):
    path = tmp_path / "a"
    write_idx(path, np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8))
    plain = path.read_bytes()
    for name, whole in (("a", plain), ("a.gz", gzip.compress(plain))):
        (tmp_path / name).write_bytes(whole)
        assert idx_shape(tmp_path / name) == (5, 28, 28)
        for cut in (0, 3, 10, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:cut])
            assert idx_shape(tmp_path / name) is None
    rows = MNIST().survey(tmp_path)
    assert [actual for _, actual, _ in rows] == ["missing"] * 4
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"no")
    assert ("train-labels-idx1-ubyte", "broken", "60000") in MNIST().survey(tmp_path)
