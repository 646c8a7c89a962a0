"""How good a model is on further data: the measures of its run, by class and by group."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from commands import call, errors
from pandas.testing import assert_frame_equal
from sklearn.metrics import confusion_matrix, precision_score

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.data.image_folder import ImageFolder, images_in
from fl_labelskew_plugins.data.table import Table
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.partition.stratified import stratified


def evaluated(*words):
    return json.loads(call("evaluate", *words, "--json").output)


def test_measures_on_the_training_data_equal_those_of_the_run(pictures):
    data, run = pictures
    result = evaluated(run.folder, data)
    *_, last = read_lines(run.folder / "metrics.jsonl")
    for key in ("accuracy", "balanced_accuracy", "macro_f1"):
        assert result[key] == pytest.approx(last[key])
    assert [row["recall"] for row in result["classes"]] == pytest.approx(last["recall"])
    assert (result["round"], result["client"], result["groups"]) == (4, None, [])
    names = [row["class"] for row in result["classes"]]
    files = images_in(data / "test")
    truth, said = [file.parent.name for file in files], run.predict(files)["class"].tolist()
    assert result["confusion"] == confusion_matrix(truth, said, labels=names).tolist()
    precisions = precision_score(truth, said, labels=names, average=None, zero_division=0)
    assert [row["precision"] or 0 for row in result["classes"]] == pytest.approx(precisions.tolist())
    best = evaluated(run.folder, data, "--best")
    assert best["accuracy"] == pytest.approx(run.summary["best_accuracy"])
    assert best["round"] == run.summary["rounds_to_best"]


def test_data_without_a_class_keep_numbers_of_other_classes(pictures, tmp_path):
    data, run = pictures
    for name in ("cross", "square"):  # not the first one
        shutil.copytree(data / "test" / name, tmp_path / "data" / "test" / name)
    result, whole = evaluated(run.folder, tmp_path / "data"), evaluated(run.folder, data)
    assert [row["samples"] for row in result["classes"]] == [0, 6, 6, 0]
    assert result["confusion"][1] == whole["confusion"][1]
    assert result["classes"][0]["recall"] is None


def test_groups_have_separate_measures(arrays):
    file, run = arrays
    result = evaluated(run.folder, file)
    y = np.load(file)["y_test"]
    right = np.array(run.predict(np.load(file)["x_test"])["class"]) == y.astype(str)
    groups = np.load(file)["groups_test"]
    assert [row["samples"] for row in result["groups"]] == [30, 30]
    for row, name in zip(result["groups"], ("north", "south"), strict=True):
        assert row["accuracy"] == pytest.approx(right[groups == name].mean())


def test_printed_results_and_files(pictures, arrays, tmp_path):
    data, run = pictures
    out = tmp_path / "out"
    told = call("evaluate", run.folder, data, "--client", "1", "--out", out).output
    assert told.startswith(f"model of client 1 after round 4\ntested on the test part of {data}: 24 samples\n\n")
    assert "\nclass   samples  recall  precision\ncircle  6 " in told
    assert told.endswith(f"written: {out}/confusion.png and {out}/evaluation.json\n")
    assert (out / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "evaluation.json").read_text())["client"] == "1"
    assert "\ngroup  samples  accuracy  balanced  macro F1\n" in call("evaluate", arrays[1].folder, arrays[0]).output


def test_mistakes_are_one_line_errors(arrays, tmp_path):
    np.savez(tmp_path / "five.npz", x_test=np.ones((4, 5), np.float32), y_test=np.arange(4) % 3)
    (line,) = errors("evaluate", arrays[1].folder, tmp_path / "five.npz")
    assert line == f"{tmp_path}/five.npz: has shape (4, 5); use (N, 6), as the model was trained on"
    (tmp_path / "out").touch()
    (line,) = errors("evaluate", arrays[1].folder, arrays[0], "--out", tmp_path / "out" / "x")
    assert line == f"{tmp_path}/out/x: cannot be written: Not a directory"


def trained_on(folder, partition="iid", /, **data_args):
    recipe = {
        "data_args": data_args,
        "partition_args": {"partition_method": partition},
        "model_args": {"model": "logistic"},
        "train_args": {"client_num_in_total": 2, "comm_round": 1},
        "method_args": {"method": "fedavg"},
    }
    return fl.run(recipe, folder, quiet=True, host="none")


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """A table with missing values, categories and hospitals, and a run on it."""
    folder, rng = tmp_path_factory.mktemp("patients"), np.random.default_rng(0)
    y = np.arange(120) % 3
    age = np.where(rng.random(120) < 0.1, np.nan, 50 + 10 * y + rng.normal(0, 3, 120))
    columns = {"id": np.arange(120), "age": age.round(2), "sex": rng.choice(["f", "m", "x"], 120)}
    hospitals = np.array(["north", "south"])[np.arange(120) // 3 % 2]
    frame = pd.DataFrame({**columns, "hospital": hospitals, "kind": np.array(["a", "b", "c"])[y]})
    frame.to_csv(folder / "all.csv", index=False)
    how = {"label": "kind", "group": "hospital", "categorical": "one_hot", "missing": "mean", "test_fraction": 0.3}
    how["features"] = ("age", "sex")
    recipe = how | {"dataset": "table", "data_cache_dir": str(folder / "all.csv"), "features": [*how["features"]]}
    run = trained_on(folder / "run", **recipe)
    return frame, how, run


def test_evaluate_tests_the_training_table_on_the_runs_own_test_rows(patients, tmp_path):
    frame, _, run = patients
    frame.to_csv(tmp_path / "copy.csv", index=False)
    result = evaluated(run.folder, tmp_path / "copy.csv")
    assert result["accuracy"] == pytest.approx(run.summary["final_accuracy"])
    assert (result["part"], result["samples"], result["total"]) == ("test", 36, 120)
    assert result["note"] == "the model was trained on the other samples"
    whole = evaluated(run.folder, tmp_path / "copy.csv", "--part", "all")
    note = "the model may have been trained on some of these samples; --part test excludes them"
    assert (whole["samples"], whole["note"]) == (120, note)
    other = evaluated(run.folder, tmp_path / "copy.csv", "--set", "data_args.test_fraction=0.5")
    assert (other["samples"], other["note"][:28]) == (60, "the model may have been trai")


def test_another_table_is_encoded_as_in_training(patients, tmp_path):
    """Other means, other categories, other columns: none of them changes how a row is encoded."""
    frame, how, run = patients
    table = Table(Table.Params(**how))
    data = table.load(run.folder.parent / "all.csv", download=False, seed=0)
    y, groups = (frame[name].astype("category").cat.codes.to_numpy() for name in ("kind", "hospital"))
    _, rows = stratified(y, groups, test_fraction=0.3, seed=0, where="")
    some = frame.iloc[[row for row in rows if frame.sex[row] != "x"]]
    assert some.age.isna().any()
    expected = run.predict(data.test.x[(frame.sex[rows] != "x").to_numpy()])
    some[["sex", "age", "id"]].to_csv(tmp_path / "some.csv", index=False)  # in another order, without the classes
    assert_frame_equal(run.predict(tmp_path / "some.csv").reset_index(drop=True), expected)
    assert_frame_equal(run.predict(some).reset_index(drop=True), expected)
    assert run.predict(some).index.tolist() == some.index.tolist()
    some.drop(columns="hospital").to_parquet(tmp_path / "some.parquet")
    result = evaluated(run.folder, tmp_path / "some.parquet")
    assert (result["part"], result["samples"]) == ("all", len(some))
    assert result["accuracy"] == pytest.approx((expected["class"].to_numpy() == some.kind.to_numpy()).mean())
    shutil.copy(run.folder / "model.safetensors", tmp_path / "alone.safetensors")
    alone = evaluated(tmp_path / "alone.safetensors", tmp_path / "some.parquet")
    assert alone["confusion"] == result["confusion"]
    assert alone["note"] == "the model may have been trained on some of these samples"


def test_predict_table_missing_columns(patients, tmp_path):
    frame, _, run = patients
    new = tmp_path / "new.csv"
    frame.assign(sex="?").to_csv(new, index=False)
    told = call("predict", run.folder, new, "--out", tmp_path / "p.csv")
    assert told.stderr.splitlines() == [
        f"warning: {new}: the model does not use column id",
        f"warning: {new}: column sex: ? does not occur in training; "
        "in these rows, the features of all categories are 0",
    ]
    count = int(frame.age.notna().sum())
    told = call("predict", run.folder, new, "--out", tmp_path / "p.csv", "--set", "data_args.missing=drop")
    assert told.stdout.endswith(f"{count} rows\n")
    (line,) = errors("evaluate", run.folder, new, "--set", "missing=refuse")
    assert line.startswith(f"{new}: column age: has no value in {120 - count} rows of 120")
    frame.rename(columns={"age": "years", "kind": "class"}).to_csv(new, index=False)
    told = call("predict", run.folder, new, code=1)
    assert f"{new}: has no column age; use a table with the columns age, sex" in told.stderr
    (line,) = errors("evaluate", run.folder, new, "--set", "data_args.label=class")
    assert line.startswith(f"data_args.features: {new} has no column age")
    frame.assign(kind="d").to_csv(new, index=False)
    (line,) = errors("evaluate", run.folder, new)
    assert line.endswith("column kind: contains d; the classes are a, b, c; use only rows of the model's classes")
    (line,) = errors("evaluate", run.folder, new, "--set", "data_args.categorical=refuse")
    assert line.startswith("--set data_args.categorical: is fixed by the model's training")


def test_data_without_a_test_part_are_tested_as_a_whole(pictures, tmp_path):
    data, run = pictures
    new = tmp_path / "new"
    shutil.copytree(data / "test", new)
    for extra in images_in(new / "star")[1:]:  # too few to split off a part
        extra.unlink()
    assert "\ntested on all 19 samples of " in call("evaluate", run.folder, new).output
    few = evaluated(run.folder, new, "--part", "test")
    assert (few["part"], few["samples"], few["total"]) == ("test", 3, 19)
    assert evaluated(run.folder, data, "--part", "all")["samples"] == 120
    (new / "star" / "bad.png").write_bytes(b"no picture")
    (line,) = errors("evaluate", run.folder, new)
    assert "data_args.on_bad_sample: skip" in line
    told = call("evaluate", run.folder, new, "--set", "data_args.on_bad_sample=skip")
    assert "tested on all 19 samples of " in told.stdout
    (line,) = errors("evaluate", run.folder, new, "--set", "data_args.on_bad=skip")
    assert line.startswith("--set data_args.on_bad: unknown key; allowed: image_size,")


def test_arrays_of_the_training_are_found(tmp_path):
    y = np.arange(60) % 3
    x = (np.eye(3)[y] + np.random.default_rng(0).normal(0, 0.4, (60, 3))).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    run = trained_on(tmp_path / "run", dataset="npz", data_cache_dir=str(tmp_path / "data.npz"))
    assert evaluated(run.folder, tmp_path / "data.npz")["accuracy"] == pytest.approx(run.summary["final_accuracy"])
    np.savez(tmp_path / "new.npz", x=x[:5], y=y[:5])
    result = evaluated(run.folder, tmp_path / "new.npz")
    assert (result["part"], result["samples"], result["note"]) == ("all", 5, None)
    np.savez(tmp_path / "data.npz", x=x[:50], y=y[:50])
    result = evaluated(run.folder, tmp_path / "data.npz")
    assert (result["part"], result["total"]) == ("test", 50)
    assert result["note"] == "the model may have been trained on some of these samples"


def test_a_data_set_without_files_needs_an_existing_folder(tmp_path):
    run = trained_on(tmp_path / "run", dataset="digits").folder
    assert evaluated(run, tmp_path, "--part", "all")["samples"] == 1797
    (line,) = errors("evaluate", run, tmp_path / "gone")
    assert line.startswith(f"{tmp_path}/gone: does not exist; use ")


def test_a_group_of_the_training_is_tested_on_its_held_out_samples(tmp_path):
    ImageFolder().fake(tmp_path / "made", samples=48, seed=0)
    for group in ("north", "south"):
        shutil.copytree(tmp_path / "made" / "train", tmp_path / "tree" / group / "train")
    shutil.copytree(tmp_path / "tree" / "north", tmp_path / "west")
    tree = {"data_cache_dir": str(tmp_path / "tree"), "groups": ["north", "south"]}
    run = trained_on(tmp_path / "run", "natural", dataset="image_folder", **tree)
    whole, north, west = (evaluated(run.folder, tmp_path / name) for name in ("tree", "tree/north", "west"))
    assert (whole["part"], whole["accuracy"]) == ("test", pytest.approx(run.summary["final_accuracy"]))
    (group,) = (row for row in whole["groups"] if row["group"] == "north")
    assert (north["part"], north["samples"]) == ("test", group["samples"])
    assert north["accuracy"] == pytest.approx(group["accuracy"])
    assert (west["part"], west["samples"]) == ("all", north["total"])
