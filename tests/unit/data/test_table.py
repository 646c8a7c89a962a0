import functools
import json
import sys

import datasets
import error_messages
import numpy as np
import pandas as pd
import pytest
from commands import call
from error_messages import mistakes

from fl_labelskew_plugins.data import files
from fl_labelskew_plugins.data.table import Table

load, load_test = (functools.partial(read, Table) for read in (datasets.load, datasets.load_test))
HINTS = ("; use ", "; to install it: ", "; name ", "; set ", "cannot be read")
message = functools.partial(error_messages.message, says=HINTS)
KINDS, PLACES = ["malign", "benign"], ["north", "south", "north", "coast", "north"]


def frame(rows=40, **columns):
    """Two features, three places, two classes; ``columns`` are added or replace these; None removes one."""
    rng = np.random.default_rng(0)
    whole = {
        "age": rng.integers(20, 90, rows),
        "pressure": rng.normal(120, 10, rows).round(1),
        "hospital": [PLACES[i % 5] for i in range(rows)],
        "label": [KINDS[i % 2] for i in range(rows)],
    } | columns
    return pd.DataFrame({name: values for name, values in whole.items() if values is not None})


def write(path, **columns):
    content = frame(**columns)
    content.to_parquet(path) if path.suffix == ".parquet" else content.to_csv(path, index=False)
    return content


def cells(values, **others):
    """A column of 40 values, all of them ``values``, but those at some rows: ``at3="x"``."""
    column = [values] * 40
    for at, value in others.items():
        column[int(at[2:])] = value
    return column


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_is_classes_features_and_groups(tmp_path, name):
    content = write(tmp_path / name)
    data = load(tmp_path, group="hospital")
    assert (data.class_names, data.group_names) == (["benign", "malign"], ["coast", "north", "south"])
    assert data.notes["features.txt"] == "age\npressure\n"
    assert json.loads(data.notes["encoding.json"])["means"] == pytest.approx(data.mean)
    assert (data.train.x.dtype, data.train.x.shape[1]) == (np.float32, 2)
    seen = np.concatenate([data.train.x, data.test.x])
    np.testing.assert_allclose(np.sort(seen[:, 0]), np.sort(content.age), rtol=1e-6)
    row = content.index[np.isclose(content.pressure, data.test.x[0, 1]) & (content.age == data.test.x[0, 0])][0]
    assert data.class_names[data.test.y[0]] == content.label[row]
    assert data.group_names[data.test.groups[0]] == content.hospital[row]
    np.testing.assert_allclose(data.mean, data.train.x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(data.std, data.train.x.std(axis=0), rtol=1e-4)
    assert [np.sum(data.test.groups == g) for g in range(3)] == [2, 4, 2]  # a fifth of each class of each group
    again, other = load(tmp_path / name, group="hospital"), load(tmp_path, group="hospital", seed=1)
    assert np.array_equal(again.test.x, data.test.x)
    assert not np.array_equal(other.test.x, data.test.x)
    assert again.fingerprint == other.fingerprint != load(tmp_path, features=("age", "pressure")).fingerprint


def test_features_in_their_order_and_a_test_file(tmp_path):
    first, second = write(tmp_path / "a.csv"), write(tmp_path / "b.csv", rows=6, hospital=["west", "coast"] * 3)
    options = {"file": "a.csv", "test_file": "b.csv", "group": "hospital", "features": ("pressure", "age")}
    data = load(tmp_path, **options)
    np.testing.assert_allclose(data.train.x, first[["pressure", "age"]], rtol=1e-6)
    np.testing.assert_allclose(data.test.x, second[["pressure", "age"]], rtol=1e-6)
    assert data.group_names == ["coast", "north", "south", "west"]
    assert data.test.groups.tolist() == [3, 0] * 3
    datasets.assert_alone(load_test(tmp_path, **options), data)
    (tmp_path / "a.csv").unlink()  # a server that only tests
    alone = load_test(tmp_path, **options)
    np.testing.assert_array_equal(alone.test.x, data.test.x)
    np.testing.assert_allclose(alone.mean, second[["pressure", "age"]].mean(), rtol=1e-6)
    assert len(alone.train.y) == 0
    assert "a.csv does not exist" in message(lambda: load(tmp_path, **options))


@pytest.mark.parametrize(
    ("text", "x"),
    [
        ("a,b,label\n1,2.5,u\n3,4,v\n", [[1, 2.5], [3, 4]]),
        ("\ufeffa;b;label\r\n1;2,5;u\r\n3;4;v\r\n", [[1, 2.5], [3, 4]]),
        ("a;b;label\n1;2.5;u\n3;4;v\n", [[1, 2.5], [3, 4]]),
        ("a\tb\tlabel\n1\t1e3\tu\n3\t-4\tv\n", [[1, 1000], [3, -4]]),
        ('a, "b", label\n1, 2.5, "u"\n3, 4, v\n', [[1, 2.5], [3, 4]]),
        ("a,b,label\nTrue,0,u\nFalse,1,v\n", [[1, 0], [0, 1]]),
    ],
)
def test_separators_and_decimal_signs(tmp_path, text, x):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "t2.csv").write_text(text, encoding="utf-8", newline="")
    data = load(tmp_path, file="t.csv", test_file="t2.csv")
    assert data.train.x.tolist() == x
    assert data.class_names == ["u", "v"]


def test_classes_are_sorted_names_or_integers(tmp_path):
    write(tmp_path / "t.csv", label=[(10, 9, 1, 2)[i % 4] for i in range(40)], hospital=None)
    assert load(tmp_path).class_names == ["1", "2", "9", "10"]
    write(tmp_path / "t.csv", label=[i % 2 == 0 for i in range(40)], hospital=None)
    assert load(tmp_path).class_names == ["False", "True"]
    long = [f"{'malign' * 10} {i % 2}" for i in range(40)]
    write(tmp_path / "t.csv", hospital=None, label=long)
    assert load(tmp_path).class_names == long[:2]
    write(tmp_path / "t.csv", hospital=None, label=["malign"] * 40)
    data = load(tmp_path, class_names=("malign", "unsure", "benign"))  # a silo that lacks two
    assert (data.class_names, set(data.train.y)) == (["malign", "unsure", "benign"], {0})


def test_one_hot(tmp_path, capsys):
    write(tmp_path / "a.csv", hospital=None, sex=["f", "m"] * 20)
    write(tmp_path / "b.csv", hospital=None, sex=["m", "x\x1b", "f", "f"] * 10)
    data = load(tmp_path, file="a.csv", test_file="b.csv", categorical="one_hot")
    assert data.notes["features.txt"].split() == ["age", "pressure", "sex=f", "sex=m"]
    assert data.train.x[:2, 2:].tolist() == [[1, 0], [0, 1]]
    assert data.test.x[:3, 2:].tolist() == [[0, 1], [0, 0], [1, 0]]
    warned = "column sex: x? does not occur in training; in these rows, the features of all categories are 0"
    assert warned in capsys.readouterr().err
    both = load(tmp_path, file="a.csv", categorical={"sex": ["m", "f", "d"]}, features=("sex",))
    assert both.train.x.shape[1] == 3
    assert set(np.flatnonzero(both.train.x.sum(0))) == {0, 1}
    line = message(lambda: load(tmp_path, file="b.csv", categorical={"sex": ["m", "f"]}))
    assert line.endswith("column sex: contains x?, which data_args.categorical omits; use one of m, f")
    write(tmp_path / "c.csv", hospital=None, sex=["m", "f"] * 20, place=["x", "y"] * 20)
    found = mistakes(lambda: load(tmp_path, file="c.csv", categorical={"sex": ["m", "d"]}))  # of all columns together
    found = [line.partition(": column ")[2].partition(";")[0] for line in found]
    assert found == ["sex: contains f, which data_args.categorical omits", "place: contains text (x, y)"]
    options = {"categorical": {"sex": ["m", "f"], "place": ["x"]}, "class_names": ("benign",)}
    found = mistakes(lambda: load(tmp_path, file="c.csv", **options))  # and of the classes
    assert [line.partition(": column ")[2].partition(": ")[0] for line in found] == ["place", "label"]
    write(tmp_path / "a.csv", hospital=None, sex=[1, 2] * 20)
    assert load(tmp_path, file="a.csv", categorical={"sex": ["1", "2"]}).train.x.shape[1] == 4


def test_missing_values_except_classes_can_be_replaced_by_means(tmp_path, capsys):
    holes = {"age": cells(50.0, at3=np.nan, at7=np.nan), "pressure": cells(100.0, at7=None, at9=160.0)}
    write(tmp_path / "t.csv", hospital=None, **holes)
    where = f"{tmp_path / 't.csv'}: column age: "
    line = message(lambda: load(tmp_path))
    assert line == where + (
        "has no value in 2 rows of 40, first in row 4; values are also missing in pressure; "
        "use data_args.missing: drop or mean"
    )
    data = load(tmp_path, missing="drop")
    assert len(data.train.y) + len(data.test.y) == 38
    assert "dropped 2 rows of 40 with missing values" in capsys.readouterr().err
    data = load(tmp_path, missing="mean")
    assert len(data.train.y) + len(data.test.y) == 40
    assert np.isfinite(data.train.x).all()
    given = np.concatenate([data.train.x, data.test.x])
    filled = given[(given[:, 1] != 100) & (given[:, 1] != 160), 1]
    expected = 100 + 60 * (160 in data.train.x) / (len(data.train.y) - (filled[0] in data.train.x))
    np.testing.assert_allclose(filled, expected, rtol=1e-5)  # of training alone
    write(tmp_path / "t.csv", hospital=None, sex=cells("f", at5=None, at6="m", at8="m"))
    data = load(tmp_path, missing="mean", categorical="one_hot")
    given = np.concatenate([data.train.x, data.test.x])[:, 2:]
    np.testing.assert_allclose(given.sum(axis=1), 1, rtol=1e-6)  # the shares in training, where it is not known
    write(tmp_path / "t.csv", hospital=None, label=[None, *KINDS, *["benign"] * 37])
    line = message(lambda: load(tmp_path, missing="mean"))
    assert "column label: has no value in 1 row of 40, first in row 1; use data_args.missing: drop" in line
    assert "or mean" not in line
    data = load(tmp_path, missing="drop", class_names=("malign", "benign"))
    assert len(data.train.y) + len(data.test.y) == 39


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({}, {"label": "diagnosis"}, "data_args.label: {file} has no column diagnosis; use one of age, pressure, "),
        ({}, {"group": "ward"}, "data_args.group: {file} has no column ward; use one of age"),
        ({}, {"features": ("age", "x\x1b")}, "data_args.features: {file} has no column x?; use one of age"),
        ({}, {"categorical": {"sex": ["f"]}}, "data_args.categorical: {file} has no column sex; use one of age"),
        ({}, {"features": ("age", "label")}, "data_args: column label is named twice; use it only once: as label"),
        ({"age": None, "pressure": None, "hospital": None}, {}, "has only the column label; use a column for each"),
        ({}, {}, "column hospital: contains text (coast, north, south); expected numbers; use data_args.categorical"),
        ({"age": cells(1, at2="?", at3="n/k")}, {}, "column age: contains text (?, n/k); expected numbers; use"),
        ({"age": cells(1.0, at2=1e300)}, {}, "column age: row 3 is not finite in float32; use finite numbers"),
        ({"age": [np.nan] * 40}, {"missing": "drop"}, "has no complete row; most values of column age are missing"),
        ({"age": [np.nan] * 40}, {"missing": "mean"}, "column age: has no value in the training part; use"),
        ({"label": ["benign"] * 40}, {}, "column label: has only the class benign; use data_args.class_names with all"),
        ({"label": np.arange(40) / 2}, {}, "column label: contains 0.5, which is not a class; use names or integers"),
        ({"label": list(range(1001)), "rows": 1001}, {}, "has 1001 different values; use a column of classes"),
        ({}, {"class_names": ("benign",)}, "contains malign; the classes are benign; use data_args.class_names"),
        ({"id": [f"p{i}" for i in range(1001)], "rows": 1001}, {"categorical": "one_hot"}, "has 1001 categories; use"),
        ({"label": [f"c{i}" for i in range(40)]}, {}, "leaves no test sample; use more samples of a class"),
        ({"rows": 0}, {}, "has no rows; use a file with one row per sample"),
    ],
)  # fmt: skip
def test_unsuitable_tables(tmp_path, columns, options, text):
    write(tmp_path / "t.csv", **({"hospital": None} if "coast" not in text else {}) | columns)
    assert text.format(file=tmp_path / "t.csv") in message(lambda: load(tmp_path, **options))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty; use a first line with the column names"),
        (b"a,a,label\n1,2,u\n", "column a occurs more than once; use a different name"),
        (b"a,,label\n1,2,u\n", "column 2 has no name; use a first line"),
        (b"a,label\n1,u\n2,3,4,v\n", "is not a valid table ("),
        (b"a,label\n1,2,u\n1,2,v\n", "is not a valid table ("),
        ("a,label\nä,u\n".encode("latin-1"), "; use a UTF-8 file (spreadsheets: CSV UTF-8)"),
        (b"\x00\x01\x02" * 50, "column "),
        (b'a,label\n"1,u\n', "is not a valid table ("),
    ],
)
def test_files_that_are_not_tables(tmp_path, content, text):
    (tmp_path / "t.csv").write_bytes(content)
    line = message(lambda: load(tmp_path))
    assert text in line
    assert line.isprintable()


def test_parquet_files_of_other_writers(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    dates = pd.date_range("2026-01-01", periods=40)
    for column, text in ((dates, "Timestamp"), ([[1]] * 40, "list<element: int64>"), ([b"x"] * 40, "bytes")):
        write(path, hospital=None, when=column)
        assert f"of type {text}; use data_args.features without this column" in message(lambda: load(tmp_path))
        assert load(tmp_path, features=("age",)).train.x.shape[1] == 1
    frame(hospital=None).set_index("age").to_parquet(path)  # an index is a column as well
    assert load(tmp_path).notes["features.txt"].split() == ["pressure", "age"]
    kept = frame(hospital=None, sex=pd.Categorical(["f", "m"] * 20), on=pd.array([True, None] * 20, "boolean"))
    kept[kept.age > 30].to_parquet(path)
    data = load(tmp_path, categorical="one_hot", missing="mean")
    assert data.notes["features.txt"].split() == ["age", "pressure", "sex=f", "sex=m", "on"]
    path.write_bytes(path.read_bytes()[:-20])
    assert "t.parquet: is not a valid table (" in message(lambda: load(tmp_path))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    line = message(lambda: load(tmp_path))
    assert "needs pyarrow, which is not installed; to install it: pip install 'pyarrow" in line
    assert line.endswith(", or use a CSV file")


def test_choice_of_the_table_file(tmp_path):
    assert "data_cache_dir is not set; set it to a .csv or .tsv or" in message(lambda: load(None))
    assert "has 0 .csv or " in message(lambda: load(tmp_path))
    write(tmp_path / "a.csv", hospital=None)
    write(tmp_path / "b.tsv", hospital=None)
    assert "name one of them in data_args.file" in message(lambda: load(tmp_path))
    assert "b.csv does not exist" in message(lambda: load(tmp_path, file="b.csv"))
    (tmp_path / "c.xlsx").touch()
    assert "c.xlsx is not a table; use a file that ends in .csv, " in message(lambda: load(tmp_path, file="c.xlsx"))
    line = message(lambda: load(tmp_path, file="a.csv", test_file="a.csv"))
    assert line.endswith("is also the training file (data_args.file); use two different files")


def test_a_table_that_does_not_fit_is_not_read(tmp_path, monkeypatch):
    write(tmp_path / "t.csv", hospital=None)
    monkeypatch.setattr(files, "free_memory", lambda: 1)
    assert "t.csv: its rows need 0.0 GB, but 0.0 GB are free; use a smaller" in message(lambda: load(tmp_path))


def test_a_deep_check_reads_all_of_a_table(tmp_path):
    write(tmp_path / "own.csv", age=cells(1.0, at2="?"))
    words = ["data", "check", "table", tmp_path / "own.csv", "--set", "group=hospital"]
    call(*words)
    assert "column age: contains text (?); expected numbers" in call(*words, "--deep", code=1).stdout
