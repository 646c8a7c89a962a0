import functools

import datasets
import error_messages
import numpy as np
import pytest

from fl_labelskew_plugins.data.npz import Npz
from fl_labelskew_plugins.data.stats import moments

Y = np.arange(20) % 4
X = np.random.default_rng(0).normal(size=(20, 5))
BAD = [np.nan, np.inf, 1e300]


def write(folder, name="data.npz", **arrays):
    np.savez(folder / name, **arrays)
    return folder / name


load, load_test = (functools.partial(read, Npz) for read in (datasets.load, datasets.load_test))
message = functools.partial(error_messages.message, says=("; use ", "; give ", "; name ", "; set ", "cannot be read"))


def test_x_and_y(tmp_path):
    path = write(tmp_path, x=X, y=Y.astype(np.uint8), groups=np.array(list("abcde") * 4))
    data = load(path)
    assert data.train.x.dtype == np.float32
    assert (len(data.train.y), len(data.test.y)) == (16, 4)
    assert data.test.y.tolist().count(3) == 1
    assert data.class_names == ["0", "1", "2", "3"]
    assert data.train.groups.dtype == np.int64
    assert set(data.train.groups) <= set(range(5))
    np.testing.assert_allclose(data.mean, data.train.x.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(data.std, data.train.x.std(axis=0), rtol=1e-4)
    assert np.array_equal(load(tmp_path).test.x, data.test.x)
    assert not np.array_equal(load(tmp_path, seed=1).test.x, data.test.x)


def test_four_arrays_and_named_file(tmp_path):
    write(tmp_path, "other.npz", x=X, y=Y)
    parts = {"x_train": X[:15], "y_train": Y[:15], "x_test": X[15:], "y_test": Y[15:]}
    parts |= {"groups_train": np.array(["b", "c", "d"] * 5), "groups_test": np.array(list("abbcc"))}
    write(tmp_path, "mine.npz", **parts)
    data = load(tmp_path, file="mine.npz")
    np.testing.assert_array_equal(data.train.x, X[:15].astype(np.float32))
    assert data.test.y.tolist() == Y[15:].tolist()
    assert data.train.groups[:3].tolist() == [1, 2, 3]
    assert data.test.groups.tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("shape", "layout", "result"),
    [
        ((20, 6, 7), "auto", (1, 6, 7)),
        ((20, 6, 7, 3), "auto", (3, 6, 7)),
        ((20, 3, 6, 7), "auto", (3, 6, 7)),
        ((20, 1, 6, 7), "auto", (1, 6, 7)),
        ((20, 3, 3, 3), "nhwc", (3, 3, 3)),
        ((20, 4, 6, 7), "nchw", (4, 6, 7)),
        ((20, 6, 7, 3), "flat", (126,)),
        ((20, 5), "auto", (5,)),
    ],
)
def test_layouts(tmp_path, shape, layout, result):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    data = load(write(tmp_path, x=x, y=Y), layout=layout)
    assert data.train.x.shape == (16, *result)
    assert data.train.x.dtype == np.uint8
    assert len(data.mean) == len(data.std) == result[0]
    if shape == (20, 6, 7, 3) and layout == "auto":
        again = np.concatenate([data.train.x, data.test.x]).transpose(0, 2, 3, 1)
        assert sorted(map(bytes, again.copy())) == sorted(map(bytes, x))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X}, "has no y (it has x)"),
        ({}, "has no x, y (it has nothing)"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "has no y_test"),
        ({"x": X, "y": Y[:9]}, "y: has 9 labels for 20 samples"),
        ({"x": X, "y": Y * 1.0}, "y: is float64 of shape (20,); use a one-dim"),
        ({"x": X, "y": Y[:, None]}, "y: is int64 of shape (20, 1)"),
        ({"x": X, "y": Y - 1}, "y: has label -1"),
        ({"x": X, "y": Y * 2}, "go up to 6, but no sample has label 1; use labels from 0 to 3"),
        *[({"x": np.where(np.arange(20)[:, None] == 7, bad, X), "y": Y}, "x: sample 7 is not finite") for bad in BAD],
        ({"x": np.array(["a"] * 20), "y": Y}, "x: is of type <U1; use numbers"),
        ({"x": np.arange(20), "y": Y}, "x: has shape (20,)"),
        ({"x": np.zeros((0, 3)), "y": Y[:0]}, "x: has shape (0, 3)"),
        ({"x": np.zeros((20, 3, 3, 3)), "y": Y}, "does not show the channel axis; use layout=nchw, nhwc or flat"),
        ({"x": np.zeros((20, 4, 5, 5)), "y": Y}, "does not show the channel axis"),
        ({"x": np.zeros((20, 2, 2, 2, 2)), "y": Y}, "use 3 or 4 dimensions with layout=auto"),
        ({"x": X, "y": Y, "groups": Y[:3]}, "groups is int64 of shape (3,); use 20 integers or strings"),
        ({"x": X, "y": Y, "groups": X[:, 0]}, "groups is float64"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :4], "y_test": Y}, "x_train has float32 samples of shape (5,)"),
        ({"x": X[:4], "y": Y[:4]}, "leaves no test sample"),
        ({"x": np.array([{}] * 20), "y": Y}, "not a valid .npz archive"),
        ({"x": X, "y": Y, "class_names": np.arange(4)}, "class_names is int64 of shape (4,); use strings in one"),
        ({"x": X, "y": Y, "class_names": np.array(["a", "b", "a"])}, "has class names a, b, a; use names that differ"),
        (
            {"x": X, "y": Y, "class_names": np.array(list("ab"))},
            "has label 3; use labels from 0 to 1 with 2 class",
        ),
        ({"x": X, "y": np.array(["a\x1b", "b"] * 10), "class_names": np.array(["b", "c"])}, "a? is not in class_names"),
        ({"x": X, "y": np.array([["a", "b"]] * 10)}, "y: is int64 of shape (10, 2); use a one-dimensional"),
        ({"x": X, "y": np.array(["a", ""] * 10)}, "has class names , a; use names that differ and are not empty"),
    ],
)
def test_bad_arrays(tmp_path, arrays, says):
    path = write(tmp_path, **arrays)
    text = message(lambda: load(path))
    assert says in text
    assert text.startswith(f"{path}: ")


def test_bad_files(tmp_path):
    assert "data_cache_dir is not set" in message(lambda: load(None))
    assert "has 0 .npz files" in message(lambda: load(tmp_path))
    assert "does not exist" in message(lambda: load(tmp_path / "none.npz"))
    (tmp_path / "folder.npz").mkdir()
    assert "is a folder" in message(lambda: load(tmp_path, file="folder.npz"))
    whole = write(tmp_path, x=X, y=Y).read_bytes()
    garbled = whole[:300] + bytes(10) + whole[310:]
    for content in (b"", b"hello", b"PK\x03\x04 nothing", whole[: len(whole) // 2], whole[:-5], garbled):
        (tmp_path / "cut.npz").write_bytes(content)
        assert "is not a valid .npz archive" in message(lambda: load(tmp_path / "cut.npz"))
    np.save(tmp_path / "single.npy", X)
    assert "contains a single array" in message(lambda: load(tmp_path / "single.npy"))


@pytest.mark.parametrize("arrays", [{"x": X, "y": Y}, {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4]}])
def test_the_test_part_can_be_read_separately(tmp_path, arrays):
    path = write(tmp_path, **arrays)
    whole, data = load(path), load_test(path)
    datasets.assert_alone(data, whole)
    assert data.train.x.base is None  # nothing holds on to the training part
    data = load_test(write(tmp_path, x_test=X, y_test=Y))
    assert np.array_equal(data.test.x, X.astype(np.float32))
    assert (data.train.x.shape, data.train.y.shape, data.train.x.dtype) == ((0, 5), (0,), np.float32)
    assert (data.mean, data.std) == moments(data.test.x)
    line = message(lambda: load_test(write(tmp_path, x_test=X, y_train=Y)))
    assert "has no y_test (it has x_test, y_train)" in line


def test_a_silo_that_lacks_classes(tmp_path):
    path = write(tmp_path, x=X, y=Y * 2)
    assert "no sample has label 1" in message(lambda: load(path))
    data = load(path, classes=9)
    assert data.class_names == [str(c) for c in range(9)]
    assert set(data.train.y) == {0, 2, 4, 6}
    assert "has label 6; use labels from 0 to 5 with data_args.classes 6" in message(lambda: load(path, classes=6))


def test_names_of_classes_and_groups_are_kept(tmp_path):
    kinds, places = np.array(["malign", "benign"] * 10), np.array(["north", "coast", "north", "so\x1buth"] * 5)
    data = load(write(tmp_path, x=X, y=kinds, groups=places))
    assert (data.class_names, data.group_names) == (["benign", "malign"], ["coast", "north", "so?uth"])
    numbers = load(write(tmp_path, x=X, y=(kinds == "malign").astype(int), groups=places))
    for part, other in ((data.train, numbers.train), (data.test, numbers.test)):
        assert part.y.tolist() == other.y.tolist()
        assert part.groups.tolist() == other.groups.tolist()
    assert (numbers.class_names, numbers.group_names) == (["0", "1"], ["coast", "north", "so?uth"])
    in_order = {"class_names": np.array(["malign", "unsure", "benign"])}
    data = load(write(tmp_path, x=X, y=kinds.astype("S"), **in_order))  # a silo's own, which lacks one
    assert (data.class_names, data.group_names) == (["malign", "unsure", "benign"], [])
    assert sorted(set(data.train.y)) == [0, 2]
    assert load(write(tmp_path, x=X, y=Y % 2, **in_order), classes=3).class_names == data.class_names
    line = message(lambda: load(write(tmp_path, x=X, y=Y % 2, **in_order), classes=5))
    assert "names 3 classes, data_args.classes is 5; use" in line
    alone = load_test(write(tmp_path, x_test=X, y_test=kinds, **in_order))
    assert (alone.class_names, alone.test.y[:2].tolist()) == (data.class_names, [0, 2])
