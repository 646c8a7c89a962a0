import json
import re
import string
import tracemalloc

import numpy as np
import pytest
from datasets import load, load_test
from error_messages import message

from fl_labelskew_plugins.data.leaf import FEMNIST, LETTERS, Shakespeare, characters
from fl_labelskew_plugins.partition.clients import divide
from fl_labelskew_plugins.partition.natural import Natural


def image(value=1.0, **pixels):
    """A white picture, some pixels of which are dark."""
    flat = [value] * 784
    for name, dark in pixels.items():
        flat[int(name[1:])] = dark
    return flat


def text(end):
    return end.rjust(80)


def content(users):
    """What LEAF writes of ``user: (x, y)``."""
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}


def write(folder, part, users, name="all_data_0_keep_0_{part}_9.json"):
    (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / part / name.format(part=part)).write_text(json.dumps(content(users)))


def writers(**sizes):
    """FEMNIST users with so many samples of class 0."""
    return {user: ([image()] * size, [0] * size) for user, size in sizes.items()}


@pytest.fixture
def femnist(tmp_path):
    write(tmp_path, "train", {"f1_2": ([image(), image(p0=0.0, p29=128 / 255)], [3, 61]), "f0_1": ([image()], [10])})
    write(tmp_path, "train", {"f2_0": ([], []), "f3_0": ([image(0)], [36])}, "all_data_1_keep_0_{part}_9.json")
    write(tmp_path, "test", {"f1_2": ([image(p783=0.0)], [3]), "f9_9": ([image()], [5]), "f2_0": ([image()], [0])})
    return tmp_path


def test_femnist(femnist):
    data = load(FEMNIST, femnist)
    assert data.train.x.dtype == np.uint8
    assert data.train.x.shape == (4, 1, 28, 28)
    assert data.train.y.tolist() == [10, 3, 61, 36]  # by sorted user
    assert data.train.groups.tolist() == [0, 1, 1, 3]
    assert data.test.y.tolist() == [3, 0, 5]  # f2_0 and f9_9 have no training samples, and are tested on all the same
    assert data.test.groups.tolist() == [1, 2, 4]
    assert [data.class_names[c] for c in (3, 10, 35, 36, 61)] == ["3", "A", "Z", "a", "z"]
    assert data.train.x[2, 0, 0, 0] == 0
    assert data.train.x[2, 0, 1, 1] == 128
    assert data.train.x.astype(int).sum() == 255 * 784 * 3 - 255 - 127
    assert data.test.x[0, 0, 27, 27] == 0
    assert (data.mean, data.std) == ((0.0,), (1.0,))
    clients = divide(data, Natural(), clients=3, seed=0)
    assert [part.tolist() for part in clients.train] == [[0], [1, 2], [3]]
    assert [part.tolist() for part in clients.test] == [[], [0], []]


def test_shakespeare(tmp_path):
    write(tmp_path / "data", "train", {"B": ([text("To b"), "?" * 80], ["e", "€"])})
    write(tmp_path / "data", "test", {"B": ([text("no\ne\ud800")], ["\n"]), "A": ([text("")], ["}"])})
    data = load(Shakespeare, tmp_path)
    assert data.train.x.dtype == np.uint8
    assert data.train.x.shape == (2, 80)
    assert "".join((LETTERS + "€")[c] for c in data.train.x[0]) == text("To b")
    assert data.train.y.tolist() == [LETTERS.index("e"), 80]
    assert data.test.y.tolist() == [79, 0]
    assert data.test.x[1, -5:].tolist() == [LETTERS.index("n"), LETTERS.index("o"), 0, LETTERS.index("e"), 80]
    assert (data.train.groups.tolist(), data.test.groups.tolist()) == ([1, 1], [0, 1])
    assert (data.mean, data.std) == ((), ())
    assert len(data.class_names) == len(set(data.class_names)) == 81


def test_vocabulary_is_leafs():
    assert len(LETTERS) == len(set(LETTERS)) == 80
    assert set(string.ascii_letters + string.digits) < set(LETTERS)
    assert characters(["\n a", "}~\x7f\x80é🎭"]).tolist() == [0, 1, LETTERS.index("a"), 79, *[80] * 5]
    assert characters([]).tolist() == []


def test_the_seed_draws_users(tmp_path):
    write(tmp_path, "train", {f"u{k}": ([image()] * (k + 1), [0] * (k + 1)) for k in range(9)} | writers(c=0))
    write(tmp_path, "test", writers(u0=1, u1=2, c=1, z=2))

    def kept(**options):
        return np.unique(load(FEMNIST, tmp_path, **options).train.groups, return_counts=True)[1].tolist()

    assert kept() == [*range(1, 10)]
    assert len(kept(users=4)) == 4
    assert kept(users=4) == kept(users=4)
    assert len({tuple(kept(users=4, seed=seed)) for seed in range(5)}) > 1
    alone, whole = load_test(FEMNIST, tmp_path, users=1), load(FEMNIST, tmp_path, users=1)
    assert alone.test.y.tolist() == whole.test.y.tolist()
    assert 3 <= len(whole.test.y) < 6  # of users of the test part alone nobody is left out
    assert "9 users have training samples; 10 are needed" in message(lambda: load(FEMNIST, tmp_path, users=10))


def test_missing_folders(tmp_path):
    plugin = Shakespeare(Shakespeare.Params())
    line = "data_cache_dir is not set; set it to LEAF's folder with train/"
    assert line in message(lambda: plugin.check(None, download=False))
    line = f"data set shakespeare: no train/*.json in {tmp_path}; to write them, use LEAF, "
    assert message(lambda: plugin.check(tmp_path, download=True)).startswith(line)
    write(tmp_path, "train", {"B": ([text("x")], ["e"])})
    assert "no test/*.json" in message(lambda: plugin.check(tmp_path, download=False))


def file_of_one_user(x, y):
    return json.dumps(content({"u": (x, y)}))


GOOD = content({"u": ([image()], [0])})
FILES = [
    ("[" * 100_000, "is not a valid JSON file"),
    ("[1, 2]", "is not a file of LEAF; use a mapping with users, num_samples, user_data"),
    (json.dumps({**GOOD, "users": 3}), "users, num_samples and user_data do not match"),
    (json.dumps({**GOOD, "users": [["u"]]}), "users, num_samples and user_data do not match"),
    (json.dumps({**GOOD, "num_samples": []}), "users, num_samples and user_data do not match"),
    (json.dumps({**GOOD, "num_samples": [2]}), "user 'u' has 1 samples, but num_samples is 2"),
    (json.dumps({**GOOD, "user_data": {"u": {"x": []}}}), "user 'u' has no lists x and y"),
    (json.dumps({**GOOD, "user_data": {"u": 4}}), "user 'u' has no lists x and y"),
    (file_of_one_user([image()], []), "user 'u' has 1 x and 0 y"),
    (file_of_one_user([[1, 0]], [0]), "user 'u' has x of shape (1, 2) instead of (1, 784); write the file again"),
    (file_of_one_user([[], image()], [0, 0]), "user 'u' has x that are not numbers in rows of the same length"),
    (file_of_one_user([["a"] * 784], [0]), "user 'u' has x that are not numbers"),
    (file_of_one_user([image(), image(p3=255)], [0, 0]), "user 'u' has pixels from 1 to 255 instead of 0 to 1"),
    (file_of_one_user([image(p3=float("nan"))], [0]), "user 'u' has pixels from nan to nan instead of 0 to 1"),
    (file_of_one_user([image()] * 2, [0, 62]), "user 'u' has label 62 instead of an integer from 0 to 61"),
    (file_of_one_user([image()], [0.5]), "user 'u' has label 0.5 instead of an integer"),
    (file_of_one_user([image()], [[]]), "user 'u' has label"),
    (file_of_one_user([image()], [10**30]), "user 'u' has y that are not numbers"),
]


@pytest.mark.parametrize(("file", "line"), FILES, ids=[line for _, line in FILES])
def test_broken_files_are_one_line(tmp_path, file, line):
    write(tmp_path, "test", {"u": ([image()], [0])})
    (tmp_path / "train").mkdir()
    path = tmp_path / "train" / "a.json"
    path.write_bytes(file.encode("latin-1"))
    text = message(lambda: load(FEMNIST, tmp_path))
    assert f"{path}: {line}" in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("x", "y", "line"),
    [
        (["short"], ["a"], "user 'r' has x \"short\" instead of text of length 80"),
        ([text("a"), 3], ["a", "b"], "user 'r' has x 3 instead of text of length 80"),
        ([text("a")], ["ab"], "user 'r' has y \"ab\" instead of text of length 1"),
        ([text("a")], [""], "user 'r' has y \"\" instead of text of length 1"),
    ],
)
def test_broken_texts_are_one_line(tmp_path, x, y, line):
    write(tmp_path, "train", {"r": (x, y)})
    write(tmp_path, "test", {"r": ([text("a")], ["b"])})
    assert line in message(lambda: load(Shakespeare, tmp_path))


def test_one_user_in_two_files_and_an_empty_test_part(tmp_path):
    for name in ("a_{part}_8.json", "a_{part}_9.json"):
        write(tmp_path, "train", writers(u=1), name)
    write(tmp_path, "test", writers(u=0))
    assert re.search(r"_9.json: user 'u' is also in .*_8.json; use the", message(lambda: load(FEMNIST, tmp_path)))
    (tmp_path / "train" / "a_train_8.json").unlink()
    assert message(lambda: load(FEMNIST, tmp_path)).startswith("data set femnist: the test part has no samples")


def test_users_become_arrays_one_by_one(tmp_path):
    """A parsed pixel takes 8 bytes and more, one in an array a single byte: not all of a file's are there at once."""
    pixels = 20 * 50 * 784
    write(tmp_path, "train", {f"u{k}": ([image()] * 50, [0] * 50) for k in range(20)})
    write(tmp_path, "test", writers(u0=1))
    size = (tmp_path / "train" / "all_data_0_keep_0_train_9.json").stat().st_size
    tracemalloc.start()
    try:
        load(FEMNIST, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < min(size + 8 * pixels, 2.4 * size)  # the text twice, while it is decoded
