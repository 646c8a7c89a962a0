"""How good a model is on further data: the measures of its run, by class and by group."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from commands import call, errors
from sklearn.metrics import confusion_matrix, f1_score, precision_score, recall_score

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.data.table import Table
from fl_labelskew_plugins.data.trees import images_in


def evaluated(*words):
    return json.loads(call("evaluate", *words, "--json").output)


def test_on_the_training_data_the_measures_are_the_runs(pictures):
    data, run = pictures
    result = evaluated(run.folder, data)
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    for key in ("accuracy", "balanced_accuracy", "macro_f1"):
        assert result[key] == pytest.approx(last[key])
    assert [row["recall"] for row in result["classes"]] == pytest.approx(last["recall"])
    assert (result["round"], result["client"], result["groups"]) == (4, None, [])
    best = evaluated(run.folder, data, "--best")
    assert best["accuracy"] == pytest.approx(run.summary["best_accuracy"])
    assert best["round"] == run.summary["rounds_to_best"]


def test_every_number_is_scikit_learns(pictures, tmp_path):
    data, run = pictures
    result = evaluated(run.folder, data)
    names = [row["class"] for row in result["classes"]]
    files = images_in(data / "test")
    truth, said = [file.parent.name for file in files], run.predict(files)["class"].tolist()
    assert result["confusion"] == confusion_matrix(truth, said, labels=names).tolist()
    for key, score in (("recall", recall_score), ("precision", precision_score)):
        expected = score(truth, said, labels=names, average=None, zero_division=0)
        assert [row[key] or 0 for row in result["classes"]] == pytest.approx(expected.tolist())
    assert result["macro_f1"] == pytest.approx(f1_score(truth, said, labels=names, average="macro", zero_division=0))


def test_a_file_alone_knows_how_pictures_are_read(pictures, tmp_path):
    data, run = pictures
    alone = tmp_path / "alone.safetensors"
    shutil.copy(run.folder / "model.safetensors", alone)
    here, there = evaluated(alone, data), evaluated(run.folder, data)
    assert {**here, "model": ""} == {**there, "model": ""}


def test_data_that_lack_a_class_keep_the_others_numbers(pictures, tmp_path):
    data, run = pictures
    for name in ("cross", "square"):  # not the first one
        shutil.copytree(data / "test" / name, tmp_path / "data" / "test" / name)
    result, whole = evaluated(run.folder, tmp_path / "data"), evaluated(run.folder, data)
    assert [row["samples"] for row in result["classes"]] == [0, 6, 6, 0]
    assert result["confusion"][1] == whole["confusion"][1]
    assert result["classes"][0]["recall"] is None


def test_groups_have_measures_of_their_own(arrays):
    file, run = arrays
    result = evaluated(run.folder, file)
    y = np.load(file)["y_test"]
    right = np.array(run.predict(np.load(file)["x_test"])["class"]) == y.astype(str)
    groups = np.load(file)["groups_test"]
    assert [row["samples"] for row in result["groups"]] == [30, 30]
    for row, name in zip(result["groups"], ("north", "south"), strict=True):
        assert row["accuracy"] == pytest.approx(right[groups == name].mean())


def test_what_a_person_reads_and_the_files(pictures, arrays, tmp_path):
    data, run = pictures
    out = tmp_path / "out"
    told = call("evaluate", run.folder, data, "--client", "1", "--out", out).output
    assert told.startswith(f"model of client 1 after round 4\ntested on the test part of {data}: 24 samples\n\n")
    assert "\nclass   samples  recall  precision\ncircle  6 " in told
    assert told.endswith(f"written: {out}/confusion.png and {out}/evaluation.json\n")
    assert (out / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "evaluation.json").read_text())["client"] == "1"
    assert "\ngroup  samples  accuracy  balanced  macro F1\n" in call("evaluate", arrays[1].folder, arrays[0]).output


def test_mistakes_are_lines(pictures, arrays, tmp_path):
    data, run = pictures
    (line,) = errors("evaluate", run.folder, tmp_path / "gone")
    assert line.startswith(f"data set image_folder: {tmp_path}/gone is not a folder; use a folder with")
    shutil.copytree(data / "test" / "star", tmp_path / "data" / "test" / "moon")
    (line,) = errors("evaluate", run.folder, tmp_path / "data")
    assert line.endswith("class 'moon' is not one of the 4 of data_args.class_names; add it")
    np.savez(tmp_path / "five.npz", x_test=np.ones((4, 5), np.float32), y_test=np.arange(4) % 3)
    (line,) = errors("evaluate", arrays[1].folder, tmp_path / "five.npz")
    assert line == f"{tmp_path}/five.npz: has shape (4, 5); use (N, 6), as the model was trained on"
    np.savez(tmp_path / "four.npz", x_test=np.ones((4, 6), np.float32), y_test=np.arange(4))
    (line,) = errors("evaluate", arrays[1].folder, tmp_path / "four.npz")
    assert "has label 3; use labels from 0 to 2 with data_args.classes 3" in line
    (tmp_path / "out").touch()
    (line,) = errors("evaluate", arrays[1].folder, arrays[0], "--out", tmp_path / "out" / "x")
    assert line == f"{tmp_path}/out/x: cannot be written: Not a directory"


def trained_on(folder, **data_args):
    recipe = {
        "data_args": data_args,
        "partition_args": {"partition_method": "iid"},
        "model_args": {"model": "logistic"},
        "train_args": {"client_num_in_total": 2, "comm_round": 1},
        "method_args": {"method": "fedavg"},
        "device_args": {"threads": 1},
    }
    return fl.run(recipe, folder, quiet=True)


def test_a_table_with_columns_in_another_order_is_refused(tmp_path):
    """The model knows its features by their places alone."""
    Table().fake(tmp_path / "data", samples=None, seed=0)
    run = trained_on(tmp_path / "run", dataset="table", data_cache_dir=str(tmp_path / "data"))
    assert evaluated(run.folder, tmp_path / "data")["accuracy"] == pytest.approx(run.summary["final_accuracy"])
    frame = pd.read_csv(tmp_path / "data" / "table.csv")
    frame[frame.columns[::-1]].to_csv(tmp_path / "turned.csv", index=False)
    (line,) = errors("evaluate", run.folder, tmp_path / "turned.csv")
    assert line.startswith(f"{tmp_path}/turned.csv: its features are feature 8, feature 7,")


def test_data_that_are_not_there_are_refused_where_none_are_needed(tmp_path):
    (line,) = errors("evaluate", trained_on(tmp_path / "run", dataset="digits").folder, tmp_path / "gone")
    assert line.startswith(f"{tmp_path}/gone: does not exist; use ")
