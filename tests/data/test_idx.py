"""Fashion-MNIST and MNIST: the real files in every layout, and broken ones."""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision
from datasets import assert_alone, load, load_test
from mistakes import message

from fl_labelskew_plugins.data.idx import FILES, MNIST, FashionMNIST, read_idx

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


BROKEN = {
    "cut.gz": (gzip.compress(idx(np.arange(256)))[:-12], "broken gzip file"),
    "plain.gz": (idx(np.arange(9)), "broken gzip file"),
    "crc.gz": (gzip.compress(idx(np.arange(256)))[:-8] + bytes(8), "broken gzip file"),
    "empty.gz": (b"", "starts with nothing"),
    "empty": (b"", "starts with nothing"),
    "magic": (b"\x00\x00\x09\x01" + idx([1, 2])[4:], "starts with 00000901"),
    "dims": (idx(np.zeros((2, 2))), "starts with 00000802"),
    "html": (b"<html>not found</html>", "starts with 3c68746d"),
    "head": (idx([1, 2])[:6], "shorter or longer"),
    "short": (idx([1, 2, 3])[:-1], "shorter or longer"),
    "long": (idx([1, 2, 3]) + b"x", "shorter or longer"),
    "huge.gz": (gzip.compress(b"\x00\x00\x08\x01\xff\xff\xff\xff" + bytes(100)), "shorter or longer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path, name):
    content, says = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    text = message(lambda: read_idx(path, 1))
    assert text.startswith(f"{path}: ")
    assert says in text


def test_garbage_in_the_middle_of_a_gzip_file(tmp_path):
    raw = bytearray(gzip.compress(idx(np.random.default_rng(0).integers(0, 9, 5000))))
    raw[200:260] = bytes(60)
    (tmp_path / "x.gz").write_bytes(raw)
    assert "fetch it again" in message(lambda: read_idx(tmp_path / "x.gz", 1))


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
