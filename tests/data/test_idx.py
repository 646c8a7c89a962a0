"""Fashion-MNIST, MNIST and EMNIST: the real files in every layout, and broken ones."""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision
from datasets import assert_alone, load, load_test
from mistakes import message

from fl_labelskew_plugins.data.idx import EMNIST, FILES, MNIST, SPLITS, FashionMNIST, idx_shape, read_idx

DEBIAN = Path(FashionMNIST.default_dir)
real = pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package dataset-fashion-mnist")


def idx(values):
    values = np.asarray(values, np.uint8)
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def tree(folder, pack=lambda raw: raw, end="", n=12):
    folder.mkdir(parents=True, exist_ok=True)
    for (part, kind), name in FILES.items():
        size = n if part == "train" else 10
        values = np.arange(size) % 10 if kind == "y" else np.arange(size * 784).reshape(size, 28, 28) % 251
        (folder / f"{name}{end}").write_bytes(pack(idx(values)))
    return folder


@real
def test_debians_folder_is_the_default():
    FashionMNIST().check(None, download=False)
    data = load(FashionMNIST, None)
    assert (data.train.x.shape, data.test.x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert data.train.x.dtype == np.uint8
    assert data.train.y.dtype == np.int64
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    assert data.class_names[9] == "Ankle boot"
    sample = data.train.x / np.float32(255)
    assert data.mean == (pytest.approx(float(sample.mean()), abs=1e-4),)
    assert data.std == (pytest.approx(float(sample.std()), abs=1e-4),)


@real
@pytest.mark.parametrize("packed", [True, False])
def test_torchvisions_layout(tmp_path, packed):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES.values():
        if packed:
            (raw / f"{name}.gz").symlink_to(DEBIAN / f"{name}.gz")
        else:
            with gzip.open(DEBIAN / f"{name}.gz") as source, (raw / name).open("wb") as target:
                shutil.copyfileobj(source, target)
    FashionMNIST().check(tmp_path, download=False)
    data, direct = load(FashionMNIST, tmp_path), load(FashionMNIST, raw)
    np.testing.assert_array_equal(data.test.x, direct.test.x)
    if not packed:
        for train in (True, False):
            theirs = torchvision.datasets.FashionMNIST(str(tmp_path), train=train)
            part = data.train if train else data.test
            np.testing.assert_array_equal(part.x[:, 0], theirs.data.numpy())
            np.testing.assert_array_equal(part.y, theirs.targets.numpy())
            assert data.class_names == theirs.classes


@pytest.mark.parametrize(("pack", "end"), [(gzip.compress, ".gz"), (bytes, "")])
def test_mnist(tmp_path, pack, end):
    tree(tmp_path / "MNIST" / "raw", pack, end)
    data = load(MNIST, tmp_path)
    assert data.train.x.shape == (12, 1, 28, 28)
    assert data.train.x[3, 0, 1, 2] == (3 * 784 + 28 + 2) % 251
    assert data.test.y.tolist() == list(range(10))
    assert (data.mean, data.std) == ((0.1307,), (0.3081,))


def test_missing_files(tmp_path):
    text = message(lambda: FashionMNIST().check(tmp_path, download=False))
    for piece in (*FILES.values(), str(tmp_path), "FashionMNIST/raw", "apt-get install dataset-fashion-mnist", "30 MB"):
        assert piece in text
    folder = tree(tmp_path / "MNIST" / "raw")
    (folder / FILES["test", "y"]).unlink()
    text = message(lambda: MNIST().check(tmp_path, download=False))
    assert "no t10k-labels-idx1-ubyte[.gz] in" in text
    assert "train" not in text
    assert "11 MB" in text
    assert "data_cache_dir is not set" in message(lambda: MNIST().check(None, download=False))
    assert "data_cache_dir is not set" in message(lambda: MNIST().check(None, download=True))
    (tmp_path / "file").write_text("x")
    assert "no train-images" in message(lambda: MNIST().check(tmp_path / "file", download=False))


PACKED = gzip.compress(idx(np.random.default_rng(0).integers(0, 9, 5000)))
INCOMPLETE = "is not a complete IDX file of bytes in 1 dimensions; get it again"
BROKEN = {
    "cut.gz": (gzip.compress(idx(np.arange(256)))[:-12], INCOMPLETE),
    "plain.gz": (idx(np.arange(9)), "cannot be read (Not a gzipped file"),
    "crc.gz": (PACKED[:-8] + bytes(4) + PACKED[-4:], "cannot be read (CRC check failed"),
    "bits.gz": (PACKED[:200] + bytes(60) + PACKED[260:], "cannot be read ("),
    "length.gz": (gzip.compress(idx(np.arange(9))[:-1])[:-4] + bytes([17, 0, 0, 0]), "cannot be read ("),
    "empty.gz": (b"", "cannot be read ("),
    "empty": (b"", INCOMPLETE),
    "magic": (b"\x00\x00\x09\x01" + idx([1, 2])[4:], INCOMPLETE),
    "dims": (idx(np.zeros((2, 2))), INCOMPLETE),
    "html": (b"<html>not found</html>", INCOMPLETE),
    "head": (idx([1, 2])[:6], "cannot be read ("),
    "short": (idx([1, 2, 3])[:-1], INCOMPLETE),
    "long": (idx([1, 2, 3]) + b"x", INCOMPLETE),
    "huge.gz": (gzip.compress(b"\x00\x00\x08\x01\xff\xff\xff\xff" + bytes(100)), INCOMPLETE),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path, name):
    content, says = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    text = message(lambda: read_idx(path, 1))
    assert text.startswith(f"{path}: ")
    assert says in text


def test_unreadable_files(tmp_path):
    assert "cannot be read (No such file" in message(lambda: read_idx(tmp_path / "none", 1))
    assert "cannot be read (Is a directory" in message(lambda: read_idx(tmp_path, 1))


@pytest.mark.parametrize(
    ("key", "values", "says"),
    [
        (("train", "x"), np.zeros((12, 27, 28)), "images of shape (12, 27, 28); use (N, 28, 28)"),
        (("test", "x"), np.zeros((0, 28, 28)), "images of shape (0, 28, 28)"),
        (("train", "y"), np.zeros(11), "11 labels for 12 images"),
        (("test", "y"), np.full(10, 10), "has label 10; use labels from 0 to 9"),
    ],
)
def test_files_that_do_not_fit(tmp_path, key, values, says):
    tree(tmp_path)
    (tmp_path / FILES[key]).write_bytes(idx(values))
    text = message(lambda: load(MNIST, tmp_path))
    assert says in text
    assert FILES[key] in text


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_the_test_part_alone(tmp_path, kind):
    folder = tree(tmp_path / "a")
    whole = load(kind, folder)
    for (part, _), name in FILES.items():
        if part == "train":
            (folder / name).unlink()
    assert "train-images" in message(lambda: kind().check(folder, download=False))
    assert_alone(load_test(kind, folder), whole)
    (folder / FILES["test", "y"]).unlink()
    assert "no t10k-labels-idx1-ubyte[.gz] in" in message(lambda: kind().check_test(folder, download=False))
    assert "no t10k-labels" in message(lambda: kind().load_test(folder, download=False, seed=0))


@pytest.mark.parametrize("split", SPLITS)
def test_emnist(tmp_path, split):
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
    text = message(lambda: load(EMNIST, tmp_path, split=other))
    assert f"no emnist-{other}-train-images-idx3-ubyte[.gz]" in text
    assert "560 MB" in text
    if first:
        path = raw / "emnist-letters-test-labels-idx1-ubyte"
        for bad in (0, 27):
            path.write_bytes(idx([bad, *labels[1:]]))
            line = message(lambda: load(EMNIST, tmp_path, split="letters"))
            assert line == f"{path}: has label {bad}; use labels from 1 to 26"


def test_emnist_download_fetches_the_split(tmp_path, monkeypatch):
    splits = []
    monkeypatch.setattr(torchvision.datasets, "EMNIST", lambda root, *, split, **_: splits.append(split))
    kind = EMNIST(EMNIST.Params(split="mnist"))
    assert "no emnist-mnist-train" in message(lambda: kind.load(tmp_path, download=True, seed=0))
    assert splits == ["mnist"]


def test_headers_are_read_without_the_data(tmp_path):
    plain = idx(np.random.default_rng(0).integers(0, 256, (5, 28, 28)))
    for name, whole in (("train-images-idx3-ubyte", plain), ("train-images-idx3-ubyte.gz", gzip.compress(plain))):
        path = tmp_path / name
        path.write_bytes(whole)
        assert idx_shape(path) == (5, 28, 28)
        assert ("train-images-idx3-ubyte", "5x28x28", "60000x28x28") in MNIST().survey(tmp_path)
        for cut in (0, 3, 10, len(whole) - 1):
            path.write_bytes(whole[:cut])
            assert ("train-images-idx3-ubyte", "broken", "60000x28x28") in MNIST().survey(tmp_path)
        path.unlink()
    assert [actual for _, actual, _ in MNIST().survey(tmp_path)] == ["missing"] * 4
