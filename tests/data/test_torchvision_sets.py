"""CIFAR and SVHN, which torchvision reads; downloads; small copies. Small files stand for the published ones."""

import hashlib
import os
import pickle
import tarfile

import numpy as np
import pytest
import torchvision
from datasets import assert_alone, load, load_test
from mistakes import message
from scipy.io import savemat

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.idx import EMNIST, MNIST, FashionMNIST
from fl_labelskew_plugins.data.torchvision_sets import CIFAR10, CIFAR100, SVHN

LABELS = {CIFAR10: ("labels", "label_names"), CIFAR100: ("fine_labels", "fine_label_names")}


def publish(monkeypatch, path):
    """Let torchvision take the file for the published one of this name."""
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    for kind in (torchvision.datasets.CIFAR10, torchvision.datasets.CIFAR100):
        for files in ("train_list", "test_list"):
            sums = [[name, md5 if name == path.name else old] for name, old in getattr(kind, files)]
            monkeypatch.setattr(kind, files, sums)
        if kind.meta["filename"] == path.name:
            monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})
        if kind.filename == path.name:
            monkeypatch.setattr(kind, "tgz_md5", md5)
    svhn = torchvision.datasets.SVHN
    changed = {k: [url, name, md5 if name == path.name else old] for k, (url, name, old) in svhn.split_list.items()}
    monkeypatch.setattr(svhn, "split_list", changed)


def cifar(monkeypatch, root, kind):
    """Write small files in the real layout; returns their arrays by part."""
    rng, folder, made = np.random.default_rng(0), root / kind.below, {"train": [], "test": []}
    folder.mkdir(parents=True)
    labels, names = LABELS[kind]
    for name in kind.sizes:
        content = {names: list(kind.class_names)}
        if "meta" not in name:
            x = rng.integers(0, 256, (6, 3, 32, 32)).astype(np.uint8)
            y = rng.integers(0, len(kind.class_names), 6)
            made["test" if "test" in name else "train"].append((x, y))
            content = {"data": x.reshape(6, 3072), labels: y.tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        publish(monkeypatch, folder / name)
    return {part: [np.concatenate(arrays) for arrays in zip(*batches, strict=True)] for part, batches in made.items()}


def pack(monkeypatch, root, kind):
    """Move the files into the archive, and let torchvision take that for the published one."""
    archive = root / kind.archive[0]
    with tarfile.open(archive, "w:gz") as stream:
        for path in sorted((root / kind.below).iterdir()):
            stream.add(path, f"{kind.below}/{path.name}")
            path.unlink()
    publish(monkeypatch, archive)
    return archive


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
@pytest.mark.parametrize("layout", ["folder", "renamed", "archive"])
def test_cifar(tmp_path, monkeypatch, kind, layout):
    made, root = cifar(monkeypatch, tmp_path, kind), tmp_path
    if layout == "renamed":
        root = (tmp_path / kind.below).rename(tmp_path / "batches")
    elif layout == "archive":
        archive = pack(monkeypatch, tmp_path, kind)
        ((name, found, expected),) = kind().survey(tmp_path)
        assert (name, found == expected) == (archive.name, False)
    data = load(kind, root)
    for part, (x, y) in made.items():
        read = getattr(data, part)
        np.testing.assert_array_equal(read.x, x)
        assert (read.x.dtype, read.x.flags.c_contiguous, read.y.dtype) == (np.uint8, True, np.int64)
        assert read.y.tolist() == y.tolist()
    assert data.class_names == list(kind.class_names)
    assert_alone(load_test(kind, root), data)


class Runs:
    """Pickled, a call of os.mkdir."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta", CIFAR10.archive[0]])
def test_only_published_pickles_are_opened(tmp_path, monkeypatch, name):
    cifar(monkeypatch, tmp_path, CIFAR10)
    path = tmp_path / CIFAR10.below / name
    if name == CIFAR10.archive[0]:
        path = pack(monkeypatch, tmp_path, CIFAR10)
        load(CIFAR10, tmp_path)
    path.write_bytes(pickle.dumps({"data": Runs(tmp_path / "made"), "label_names": []}, protocol=2))
    for read in (load, load_test):
        assert message(lambda read=read: read(CIFAR10, tmp_path)) == (
            f"{path}: is not the published file (its MD5 sum differs), and was not read; delete it, and get it again "
            f"from {CIFAR10.source}"
        )
    assert not (tmp_path / "made").exists()


def test_cifar_files_missing(tmp_path, monkeypatch):
    cifar(monkeypatch, tmp_path, CIFAR10)
    (tmp_path / CIFAR10.below / "data_batch_5").unlink()
    text = message(lambda: CIFAR10().check(tmp_path, download=False))
    assert "data set CIFAR10: no data_batch_5 in" in text
    assert "cifar-10-python.tar.gz, 171 MB, or download: true" in text
    assert ("data_batch_5", "missing", "31.0 MB") in CIFAR10().survey(tmp_path)
    assert "data_cache_dir is not set" in message(lambda: CIFAR100().check(None, download=True))


def svhn(monkeypatch, root):
    """Write small files in the real format; returns their arrays by part."""
    rng, made = np.random.default_rng(0), {}
    for part in ("train", "test"):
        x = rng.integers(0, 256, (32, 32, 3, 12)).astype(np.uint8)
        path = root / f"{part}_32x32.mat"
        savemat(path, {"X": x, "y": np.arange(1, 13, dtype=np.uint8)[:, None] % 10 + 1})
        publish(monkeypatch, path)
        made[part] = x.transpose(3, 2, 0, 1), [2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
    return made


def test_svhn(tmp_path, monkeypatch):
    made = svhn(monkeypatch, tmp_path)
    data = load(SVHN, tmp_path)
    for part, (x, y) in made.items():
        read = getattr(data, part)
        np.testing.assert_array_equal(read.x, x)
        assert (read.x.dtype, read.x.flags.c_contiguous, read.y.dtype) == (np.uint8, True, np.int64)
        assert read.y.tolist() == y
    path = tmp_path / "train_32x32.mat"
    for content in (b"", b"<html>", path.read_bytes()[:-20]):
        path.write_bytes(content)
        assert message(lambda: load(SVHN, tmp_path)).startswith(f"{path}: is not the published file")
    path.unlink()
    assert_alone(load_test(SVHN, tmp_path), data)
    text = message(lambda: SVHN().check(tmp_path, download=False))
    assert "data set SVHN: no train_32x32.mat in" in text
    assert "http://ufldl.stanford.edu/housenumbers/, 182 and 64 MB, or download: true" in text


def test_svhn_downloads_both_files(tmp_path, monkeypatch):
    splits = []
    monkeypatch.setattr(torchvision.datasets, "SVHN", lambda root, *, split, download: splits.append(split))
    assert "no train_32x32.mat, test_32x32.mat in" in message(lambda: SVHN().load(tmp_path, download=True, seed=0))
    assert splits == ["train", "test"]


def test_download(tmp_path, monkeypatch):
    real = torchvision.datasets.CIFAR10

    def fail(root, *, train, download):
        raise RuntimeError("Error downloading\n  all mirrors failed")

    def write(root, *, train, download):
        monkeypatch.setattr(torchvision.datasets, "CIFAR10", real)
        cifar(monkeypatch, tmp_path, CIFAR10)

    def read():
        return CIFAR10().load(tmp_path, download=True, seed=0)

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fail)
    CIFAR10().check(tmp_path, download=True)
    source = CIFAR10.source.removesuffix(", or download: true")
    assert message(read) == (
        f"data set CIFAR10: the download to {tmp_path} failed (RuntimeError: Error downloading all mirrors "
        f"failed); get the files from {source}"
    )
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", lambda root, *, train, download: None)
    assert "data set CIFAR10: no data_batch_1" in message(read)
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", write)
    assert len(read().train.y) == 30
    assert len(read().train.y) == 30  # what is there is not downloaded again


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, EMNIST, CIFAR10, CIFAR100, SVHN])
def test_small_copies_hold_the_arrays(tmp_path, kind):
    samples = 4 * len(kind().class_names)
    kind().fake(tmp_path, samples=samples, seed=0)
    kind().check(tmp_path, download=False)
    made = fakes.parts(samples, classes=len(kind().class_names), shape=kind.shape, seed=0)
    data = load(kind, tmp_path)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(data, part).x, made[part].x)
        np.testing.assert_array_equal(getattr(data, part).y, made[part].y)
    assert (data.class_names, data.mean) == (list(kind().class_names), kind.moments[0])
    assert_alone(load_test(kind, tmp_path), data)
    assert fakes.made_up(tmp_path)
    other = CIFAR10 if kind is not CIFAR10 else CIFAR100
    text = message(lambda: load(other, tmp_path))
    assert text.startswith(f"{tmp_path / fakes.ARRAYS}: was not written for data set {other.kind}; use ")
    (tmp_path / fakes.ARRAYS).write_bytes(b"PK")
    assert "is not a sound .npz archive" in message(lambda: load(kind, tmp_path))
