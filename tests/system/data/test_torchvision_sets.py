import gzip
import hashlib
import os
import pickle
import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torchvision
from datasets import assert_alone, load, load_test
from error_messages import message
from scipy.io import savemat

from fl_labelskew_plugins.data.idx import EMNIST, MNIST, SPLITS, FashionMNIST, read_idx
from fl_labelskew_plugins.data.torchvision_sets import CIFAR10, CIFAR100, SVHN

DEBIAN = Path(FashionMNIST.default_dir)
LABELS = {CIFAR10: ("labels", "label_names"), CIFAR100: ("fine_labels", "fine_label_names")}


def idx(values):
    values = np.asarray(values, np.uint8)
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def publish(monkeypatch, path):
    """Let torchvision take the file for the published one of this name."""
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    for kind in (torchvision.datasets.CIFAR10, torchvision.datasets.CIFAR100):
        for files in ("train_list", "test_list"):
            sums = [[name, md5 if name == path.name else old] for name, old in getattr(kind, files)]
            monkeypatch.setattr(kind, files, sums)
        if kind.meta["filename"] == path.name:
            monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})
    svhn = torchvision.datasets.SVHN
    changed = {k: [url, name, md5 if name == path.name else old] for k, (url, name, old) in svhn.split_list.items()}
    monkeypatch.setattr(svhn, "split_list", changed)


def write(monkeypatch, root, kind, end="", pack=bytes):
    """Write small files in the layout of a data set; returns ``x`` and ``y`` of each part."""
    rng, folder, dataset, made = np.random.default_rng(0), root / kind.below, kind(), {"train": [], "test": []}
    folder.mkdir(parents=True, exist_ok=True)
    for part, files in dataset.files.items():
        if issubclass(kind, MNIST):
            x, y = rng.integers(0, 256, (12, 1, 28, 28)).astype(np.uint8), np.arange(12) % 10
            for name, values in zip(files, (x[:, 0], y), strict=True):
                (folder / f"{name}{end}").write_bytes(pack(idx(values)))
        elif kind is SVHN:
            x, y = rng.integers(0, 256, (12, 3, 32, 32)).astype(np.uint8), np.arange(12) % 10
            path = folder / next(iter(files))
            savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None].astype(np.uint8)})
            publish(monkeypatch, path)
        else:
            labels, names = LABELS[kind]
            (folder / [*files][-1]).write_bytes(pickle.dumps({names: list(kind.class_names)}, protocol=2))
            publish(monkeypatch, folder / [*files][-1])
            batches = [name for name in files if "meta" not in name and ("test" in name) == (part == "test")]
            x = rng.integers(0, 256, (6 * len(batches), 3, 32, 32)).astype(np.uint8)
            y = rng.integers(0, len(kind.class_names), len(x))
            for i, name in enumerate(batches):
                rows = slice(6 * i, 6 * i + 6)
                content = {"data": x[rows].reshape(6, 3072), labels: y[rows].tolist()}
                (folder / name).write_bytes(pickle.dumps(content, protocol=2))
                publish(monkeypatch, folder / name)
        made[part] = x, y
    return made


@pytest.mark.parametrize("below", [True, False], ids=["torchvision's folders", "the files' folder"])
@pytest.mark.parametrize(
    ("kind", "end", "pack"),
    [(MNIST, "", bytes), (MNIST, ".gz", gzip.compress), (FashionMNIST, "", bytes), (EMNIST, ".gz", gzip.compress)]
    + [(kind, "", bytes) for kind in (CIFAR10, CIFAR100, SVHN)],
)
def test_samples_equal_the_content_of_the_files(tmp_path, monkeypatch, kind, end, pack, below):
    made = write(monkeypatch, tmp_path, kind, end, pack)
    root = tmp_path
    if not below and kind.below:
        root = (tmp_path / kind.below).rename(tmp_path / "any name")
    data = load(kind, root)
    for part, (x, y) in made.items():
        read = getattr(data, part)
        np.testing.assert_array_equal(read.x, x)
        assert (read.x.dtype, read.x.flags.c_contiguous, read.y.dtype) == (np.uint8, True, np.int64)
        assert read.y.tolist() == y.tolist()
    assert (data.class_names, data.mean) == (list(kind().class_names), kind.moments[0])
    assert_alone(load_test(kind, root), data)


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, EMNIST, CIFAR10, CIFAR100, SVHN])
def test_missing_files_are_named_with_their_source(tmp_path, monkeypatch, kind):
    if kind is not FashionMNIST:
        assert "data_cache_dir is not set" in message(lambda: kind().check(None, download=True))
    write(monkeypatch, tmp_path, kind)
    ending = "[.gz]" if issubclass(kind, MNIST) else ""
    for part in ("train", "test"):
        name = next(iter(kind().files[part]))
        path = tmp_path / kind.below / name
        content = path.read_bytes()
        path.unlink()
        text = message(lambda: kind().check(tmp_path, download=False))
        assert text.startswith(f"data set {kind.kind}: no {name}{ending} in {tmp_path}")
        assert text.endswith(f"; get them from {kind.source}")
        assert (name, "missing") in [row[:2] for row in kind().survey(tmp_path)]
        path.write_bytes(content)
    (tmp_path / "file").write_text("x")
    assert name in message(lambda: kind().check(tmp_path / "file", download=False))


@pytest.mark.parametrize("kind", [MNIST, EMNIST, CIFAR10, SVHN])
def test_downloads(tmp_path, monkeypatch, kind):
    theirs, calls = getattr(torchvision.datasets, kind.kind), []
    fail = Mock(side_effect=RuntimeError("Error downloading\n  all mirrors failed"))

    def fetch(root, **options):
        calls.append(options)
        monkeypatch.setattr(torchvision.datasets, kind.kind, theirs)
        write(monkeypatch, tmp_path, kind)

    def read():
        return kind().load(tmp_path, download=True, seed=0)

    monkeypatch.setattr(torchvision.datasets, kind.kind, fail)
    kind().check(tmp_path, download=True)
    assert message(read) == (
        f"data set {kind.kind}: the download to {tmp_path} failed (RuntimeError: Error downloading all mirrors "
        f"failed); get the files from {kind.source.removesuffix(', or download: true')}"
    )
    monkeypatch.setattr(torchvision.datasets, kind.kind, lambda root, **options: calls.append(options))
    assert f"data set {kind.kind}: no {next(iter(kind().files['train']))}" in message(read)
    assert calls == [{"download": True, **options} for options in kind().downloads]
    if len(kind().downloads) == 1:
        monkeypatch.setattr(torchvision.datasets, kind.kind, fetch)
        assert len(read().train.y) == len(read().train.y) > 0
        assert len(calls) == 2  # what is there is not downloaded again


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package dataset-fashion-mnist; .ci/run installs it")
def test_debians_folder_is_the_default(tmp_path):
    FashionMNIST().check(None, download=False)
    data = load(FashionMNIST, None)
    assert (data.train.x.shape, data.test.x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    sample = data.train.x / np.float32(255)
    assert data.mean == (pytest.approx(float(sample.mean()), abs=1e-4),)
    assert data.std == (pytest.approx(float(sample.std()), abs=1e-4),)
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in DEBIAN.glob("*ubyte.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    for part, train in ((data.train, True), (data.test, False)):
        theirs = torchvision.datasets.FashionMNIST(str(tmp_path), train=train)
        np.testing.assert_array_equal(part.x[:, 0], theirs.data.numpy())
        np.testing.assert_array_equal(part.y, theirs.targets.numpy())
        assert data.class_names == theirs.classes


BROKEN = {
    "cut.gz": gzip.compress(idx(np.arange(256)))[:-12],
    "empty": b"",
    "magic": b"\x00\x00\x09\x01" + idx([1, 2])[4:],
    "head": idx([1, 2])[:6],
    "axes": b"\x00\x00\x08\xff" + b"\xff" * 4 * 255,
    "no axes": b"\x00\x00\x08\x00\x01",
    "short": idx([1, 2, 3])[:-1],
    "long": idx([1, 2, 3]) + b"x",
}


def test_arrays_of_idx_files_are_writable(tmp_path):
    """Otherwise torch warns of each of them."""
    (tmp_path / "a").write_bytes(idx([1, 2, 3]))
    assert read_idx(tmp_path / "a").flags.writeable


@pytest.mark.parametrize("name", [*BROKEN, "none", "folder", "bomb.gz", "fifo"])
def test_a_broken_idx_file_is_one_line(tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif name == "fifo":
        os.mkfifo(path)
    elif name == "bomb.gz":
        path.write_bytes(gzip.compress(b"\x00\x00\x08\x01\xff\xff\xff\xff" + bytes(10**6)))
    elif name in BROKEN:
        path.write_bytes(BROKEN[name])
    text = message(lambda: read_idx(path))
    assert text.startswith(f"{path}: ")
    if name == "bomb.gz":
        assert "become 4.3 GB of memory, more than 100 times as many; use the published file" in text
    else:
        assert "cannot be read (" in text or "is not a valid IDX file (" in text


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("train-images-idx3-ubyte", np.zeros((12, 27, 28)), "images of shape (12, 27, 28); use (N, 28, 28)"),
        ("t10k-images-idx3-ubyte", np.zeros((0, 28, 28)), "images of shape (0, 28, 28)"),
        ("train-labels-idx1-ubyte", np.zeros(11), "labels of shape (11,) for 12 images"),
        ("t10k-labels-idx1-ubyte", np.full(12, 10), "has label 10; use labels from 0 to 9"),
    ],
)
def test_idx_files_that_do_not_match(tmp_path, monkeypatch, name, values, says):
    write(monkeypatch, tmp_path, MNIST)
    path = tmp_path / "MNIST" / "raw" / name
    path.write_bytes(idx(values))
    text = message(lambda: load(MNIST, tmp_path))
    assert text.startswith(f"{path}: ")
    assert says in text
    assert "x".join(map(str, values.shape)) in [row[1] for row in MNIST().survey(tmp_path)]
    path.write_bytes(b"")
    assert (name, "broken") in [row[:2] for row in MNIST().survey(tmp_path)]


@pytest.mark.parametrize("split", SPLITS)
def test_emnist_equals_that_of_torchvision(tmp_path, split):
    names = EMNIST(EMNIST.Params(split=split)).class_names
    first, raw = int(split == "letters"), tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    labels = np.arange(len(names)) + first
    for part in ("train", "test"):
        images = np.arange(len(names) * 784).reshape(-1, 28, 28) % 251
        (raw / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    data = load(EMNIST, tmp_path, split=split)
    for part in ("train", "test"):
        theirs = torchvision.datasets.EMNIST(str(tmp_path), split=split, train=part == "train")
        np.testing.assert_array_equal(getattr(data, part).x[:, 0], theirs.data.numpy())
        np.testing.assert_array_equal(getattr(data, part).y + first, theirs.targets.numpy())
        assert data.class_names == theirs.classes[first:]
    other = "digits" if split != "digits" else "mnist"
    assert f"no emnist-{other}-train-images-idx3-ubyte[.gz]" in message(lambda: load(EMNIST, tmp_path, split=other))
    if first:
        path = raw / "emnist-letters-test-labels-idx1-ubyte"
        for bad in (0, 27):
            path.write_bytes(idx([bad, *labels[1:]]))
            line = message(lambda: load(EMNIST, tmp_path, split="letters"))
            assert line == f"{path}: has label {bad}; use labels from 1 to 26"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(CIFAR10, "data_batch_3"), (CIFAR10, "batches.meta"), (CIFAR100, "meta"), (SVHN, "train_32x32.mat")],
)
def test_only_published_files_are_opened(tmp_path, monkeypatch, kind, name):
    write(monkeypatch, tmp_path, kind)
    path = tmp_path / kind.below / name
    whole = path.read_bytes()
    pickled = f"cos\nmkdir\n(V{tmp_path / 'made'}\ntR.".encode()  # a call of os.mkdir
    for content in (pickled, b"", whole[:-20]):
        path.write_bytes(content)
        for read in (load, load_test) if kind is not SVHN else (load,):
            assert message(lambda read=read: read(kind, tmp_path)) == (
                f"{path}: is not the published file (its MD5 sum differs), and was not read; delete it, and get it "
                f"again from {kind.source}"
            )
    assert not (tmp_path / "made").exists()
