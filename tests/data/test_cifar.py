"""CIFAR's pickles: as Python 2 wrote them, in an archive, broken, and hostile."""

import codecs
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torchvision
from datasets import load
from mistakes import message

from fl_labelskew_plugins.data import pickles
from fl_labelskew_plugins.data.cifar import CIFAR10, CIFAR100


@pytest.fixture
def folder(tmp_path):
    CIFAR10().fake(tmp_path / "data", samples=100, seed=0)
    return tmp_path / "data"


def pack(folder, below, name, leave_out=()):
    with tarfile.open(folder / name, "w:gz") as archive:
        for path in sorted((folder / below).iterdir()):
            if path.name not in leave_out:
                archive.add(path, f"{below}/{path.name}")
    for path in (folder / below).iterdir():
        path.unlink()


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
def test_torchvision_reads_the_same(tmp_path, monkeypatch, kind):
    kind().fake(tmp_path, samples=None, seed=0)
    theirs_kind = getattr(torchvision.datasets, kind.kind)
    monkeypatch.setattr(theirs_kind, "_check_integrity", lambda self: True)  # made-up files have sums of their own
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda path, md5: True)
    data = load(kind, tmp_path)
    for part, train in ((data.train, True), (data.test, False)):
        theirs = theirs_kind(str(tmp_path), train=train)
        np.testing.assert_array_equal(part.x.transpose(0, 2, 3, 1), theirs.data)
        assert part.y.tolist() == theirs.targets
        assert data.class_names == theirs.classes


@pytest.mark.parametrize(
    ("kind", "below", "name"),
    [
        (CIFAR10, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        (CIFAR100, "cifar-100-python", "cifar-100-python.tar.gz"),
    ],
)
def test_an_archive_is_read_as_it_lies(tmp_path, kind, below, name):
    kind().fake(tmp_path, samples=None, seed=0)
    whole = load(kind, tmp_path)
    pack(tmp_path, below, name)
    kind().check(tmp_path, download=False)
    data = load(kind, tmp_path)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(data, part).x, getattr(whole, part).x)
        np.testing.assert_array_equal(getattr(data, part).y, getattr(whole, part).y)
    ((what, found, expected),) = kind().survey(tmp_path)
    assert (what, found == expected) == (name, False)
    cut = (tmp_path / name).read_bytes()[:-40_000]
    (tmp_path / name).write_bytes(cut)
    assert f"{name}: is not a sound archive" in message(lambda: load(kind, tmp_path))
    (tmp_path / name).write_bytes(b"<html>")
    assert f"{name}: is not a sound archive" in message(lambda: load(kind, tmp_path))


def test_an_archive_that_lacks_a_batch(folder):
    pack(folder, "cifar-10-batches-py", "cifar-10-python.tar.gz", leave_out=["data_batch_4"])
    assert "tar.gz: has no cifar-10-batches-py/data_batch_4; get it again" in message(lambda: load(CIFAR10, folder))


def python2(values, labels):
    """A batch as Python 2's cPickle, protocol 2, writes it: byte strings, and numpy's old names."""

    def text(raw):
        return b"T" + len(raw).to_bytes(4, "little") + raw

    def number(n):
        return b"M" + n.to_bytes(2, "little")

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + number(values.shape[0]) + number(values.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89" + text(values.tobytes()) + b"tb"
    )
    items = text(b"labels") + b"](" + b"".join(map(number, labels)) + b"e" + text(b"data") + array
    return b"\x80\x02}(" + items + b"u."


def test_python_2_wrote_the_real_ones(folder):
    values = np.random.default_rng(0).integers(0, 256, (7, 3072)).astype(np.uint8)
    raw = python2(values, range(7))
    assert pickle.loads(raw, encoding="latin1")["labels"] == list(range(7))  # it is such a pickle
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(raw)
    data = load(CIFAR10, folder)
    np.testing.assert_array_equal(data.test.x.reshape(7, -1), values)
    assert data.test.y.tolist() == list(range(7))


class Runs:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


HOSTILE = [os.mkdir, os.system, eval, codecs.open, np.load, np.fromfile, getattr]


@pytest.mark.parametrize("call", HOSTILE, ids=lambda call: call.__name__)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_that_a_pickle_names_is_run(tmp_path, call, protocol):
    target = tmp_path / "made"
    raw = pickle.dumps({"data": Runs(call, str(target)), "labels": []}, protocol)
    text = message(lambda: pickles.read_dict(raw, "here"))
    assert text.startswith("here: is not a sound file of this data set (UnpicklingError: it names ")
    assert "was not run" in text
    assert not target.exists()


ALLOWED = [b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy.core.multiarray\n_reconstruct\n"]
CHANGES = {
    "attributes": b"}U\x05valueK\x01s",
    "slots": b"N}U\x05valueK\x01s\x86",
    "defaults": b"N}U\x0c__defaults__)s\x86",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ALLOWED)
def test_a_pickle_cannot_change_what_reads_it(name, change):
    before = [dict(vars(kind)) for kind in pickles.ALLOWED.values()]
    text = message(lambda: pickles.read_dict(b"\x80\x02" + name + CHANGES[change] + b"b0}.", "here"))
    assert text.startswith("here: is not a sound file")
    assert before == [dict(vars(kind)) for kind in pickles.ALLOWED.values()]


def persistent(raw=io.BytesIO):
    stream = raw()
    writer = pickle.Pickler(stream, 2)
    writer.persistent_id = lambda value: "id" if value == "x" else None
    writer.dump({"data": "x"})
    return stream.getvalue()


BROKEN = {
    "empty": b"",
    "text": b"hello",
    "list": pickle.dumps([1, 2], 2),
    "cut": pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, 2)[:-200],
    "objects": pickle.dumps({"data": np.array([{}, {}], object)}, 2),
    "floats": pickle.dumps({"data": np.zeros((2, 3))}, 2),
    "encoding": pickle.dumps({"data": Runs(codecs.encode, "x", "rot13")}, 2),
    "persistent": persistent(),
    "no array": b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs.",
    "huge": python2(np.zeros((1, 3072), np.uint8), [0]).replace(b"M\x01\x00M\x00\x0c", b"J\xff\xff\xff\x7fM\x00\x0c"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_pickles(name):
    text = message(lambda: pickles.read_dict(BROKEN[name], "here"))
    assert text.startswith("here: is not a sound file of this data set (")
    assert text.endswith("; get it again")


GOOD = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 9]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": [0, 1, 2]}, "labels is a list of 3; use a list of 4 labels"),
        ({"labels": [0, 1, 2, 10]}, "labels has 10; use labels from 0 to 9"),
        ({"labels": [0, 1, 2, -1]}, "labels has -1; use labels from 0 to 9"),
        ({"labels": [0, 1, 2, "3"]}, "labels has '3'; use labels from 0 to 9"),
        ({"labels": None}, "labels is NoneType"),
        ({"data": np.zeros((4, 3071), np.uint8)}, "data is of shape (4, 3071); use an array (N, 3072)"),
        ({"data": "text"}, "data is str"),
    ],
)
def test_batches_that_do_not_fit(folder, change, says):
    path = folder / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps(GOOD, 2))
    assert load(CIFAR10, folder).train.x.dtype == np.uint8
    path.write_bytes(pickle.dumps(GOOD | change, 2))
    text = message(lambda: load(CIFAR10, folder))
    assert text.startswith(f"{path}: {says}")


def test_an_empty_batch(folder):
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(python2(np.zeros((0, 3072), np.uint8), []))
    assert "test_batch: data is of shape (0, 3072); use an array" in message(lambda: load(CIFAR10, folder))


def test_missing_files(folder):
    (folder / "cifar-10-batches-py" / "data_batch_5").unlink()
    text = message(lambda: CIFAR10().check(folder, download=False))
    assert "data set CIFAR10: no data_batch_5 in" in text
    assert "cifar-10-python.tar.gz, 171 MB, or download: true" in text
    CIFAR10().check_test(folder, download=False)  # a server that only tests
    assert len(CIFAR10().load_test(folder, download=False, seed=0).test.y) == 20
    assert "data_cache_dir is not set" in message(lambda: CIFAR100().check(None, download=True))
