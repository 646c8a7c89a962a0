"""The table over run folders, from folders made by hand."""

import json
import math

import pytest
from fl_labelskew_registry import LabelSkewError, MistakesError, catalog, load
from run_folders import folder, resolved

from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.studies import report, side_by_side
from fl_labelskew_plugins.studies.finished import grouped, read


def rows_of(*runs, last=2, baseline="fedavg"):
    return report.rows(grouped([read(run) for run in runs]), last, baseline)


def numbers(found, *names):
    """Columns as lists, with None for NaN."""
    return [[None if math.isnan(value) else value for value in line] for line in found[list(names)].to_numpy()]


def lines_of(found):
    """Setting to the labels of its curves."""
    return {setting: list(lines) for setting, lines in report.curves(found).items()}


def test_how_the_clients_fare_has_columns_where_it_is_known(tmp_path):
    told = {"client_accuracy_mean": 0.5, "client_accuracy_worst": 0.25, "client_accuracy_std": 0.125}
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.5, 0.5], **told),
        folder(tmp_path / "b", resolved(1), [0.5, 0.5], **told | {"client_accuracy_worst": 0.5}),
        folder(tmp_path / "c", resolved(0, "fedrs"), [0.5, 0.5]),
    )
    assert numbers(found, "own tests", "worst client", "spread") == [[50.0, 37.5, 12.5], [None, None, None]]
    texts = report.texts(found)
    assert texts["worst client"].tolist() == ["37.50 ± 17.68", "-"]
    assert not report.texts(found[1:]).columns.intersection(["own tests", "worst client", "spread"]).size


def test_seeds_share_a_row_with_mean_and_std(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.1, 0.5, 0.7], personal=0.9, seconds=[1.0, 2.0, 3.0], bytes_up=3e6),
        folder(tmp_path / "b", resolved(1), [0.9, 0.4, None, 0.4], seconds=[4.0] * 4, bytes_up=3e6),
        folder(tmp_path / "c", resolved(0, "fedrs", alpha=0.5), [0.25]),
        folder(tmp_path / "d", resolved(0, "fedrs", alpha=1.0), [0.5], bytes_down=500_000),
    )
    texts = report.texts(found)
    head, rows = texts.columns.tolist(), texts.to_numpy().tolist()
    assert head == [
        "method", "data", "partition", "differs in", "seeds", "rounds", "accuracy", "local model", "best", "rank",
        "rounds to baseline", "MB up", "MB down", "s/round", "peak MB",
    ]  # fmt: skip
    # Means of the last two tests: (0.5 + 0.7) / 2 and 0.4; their sample std is 0.1 * sqrt(2).
    # The baseline's mean is 0.5, then 0.45; only rounds that both seeds have tested count. Seconds: (6 + 16) / 7.
    first = ["fedavg", "digits", "iid", "", "2", "3-4", "50.00 ± 14.14", "90.00", "80.00 ± 14.14", "1", "1 (1.00x)"]
    assert rows == [
        [*first, "3.000", "-", "3.14", "503"],
        ["fedrs", "digits", "iid", "alpha=0.5", "1", "1", "25.00", "-", "25.00", "3", "> 1", "-", "-", "-", "-"],
        ["fedrs", "digits", "iid", "alpha=1.0", "1", "1", "50.00", "-", "50.00", *first[-2:], "-", "0.500", "-", "-"],
    ]
    # Equal cells are equally good; a single number is nothing to compare.
    marks = report.marks(found)
    assert marks.columns.tolist() == head
    assert marks["accuracy"].tolist() == [1, 2, 1]
    assert marks["rounds to baseline"].tolist() == [1, 0, 1]
    assert not marks[["local model", "rank", "MB up"]].any(axis=None)


def test_local_models_are_called_so_and_not_compared(tmp_path):
    runs = {
        "avg": ("fedavg", 0.99, '{"personal_models": false}'),
        "lc": ("fedlc", 0.98, '{"personal_models": false}'),
        "map": ("map", 0.9, '{"personal_models": true}'),
        "rod": ("fedrod", 0.8, '{"personal_models": true}'),
        "old": ("fedphp", 0.7, "{}"),  # older folders do not tell, but keep the models
        "half": ("fedrs", 0.95, "{"),
    }
    for name, (method, personal, environment) in runs.items():
        path = folder(tmp_path / name, resolved(0, method), [0.5], personal=personal)
        (path / "environment.json").write_text(environment)
    (tmp_path / "old" / "clients").mkdir()
    found = rows_of(*(tmp_path / name for name in runs))
    texts, marks = report.texts(found), report.marks(found)
    assert texts["personalised"].tolist() == ["-", "-", "90.00", "80.00", "70.00", "-"]
    assert texts["local model"].tolist() == ["99.00", "98.00", "-", "-", "-", "95.00"]
    assert marks["personalised"].tolist() == [0, 0, 1, 2, 0, 0]
    assert not marks["local model"].any()
    assert report.texts(found, split=True)["local model"][0] == "99.00"
    assert "local model" not in report.texts(found[2:4])
    assert "personalised" not in report.texts(found[:2])


@pytest.mark.parametrize("method", [entry.name for entry in catalog.entries("methods")])
def test_methods_that_keep_a_model_for_each_client(method):
    plugin = load("methods", method)
    assert plugin(plugin.Params()).personalises() == (method in ("map", "fedphp", "fedrod", "flda"))


def test_a_method_has_the_same_name_and_place_in_every_setting(tmp_path):
    # tau tells two rows under pcdd apart, so it is told under iid, too; what differs between the settings is not
    recipes = [
        resolved(0, "fedlc", "pcdd", tau=1.0), resolved(0, "fedlc", "pcdd", tau=3.0), resolved(0, "fedavg", "pcdd"),
        resolved(0, "fedlc", "iid", tau=1.0), resolved(0, "fedavg", "iid"),
    ]  # fmt: skip
    for recipe in recipes[3:]:
        recipe["train_args"]["epochs"] = 2
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5]) for n, recipe in enumerate(recipes)))
    names = found["label"].tolist()
    assert names == ["fedlc, tau=1.0", "fedlc, tau=3.0", "fedavg", "fedlc, tau=1.0", "fedavg"]
    assert lines_of(found) == {"pcdd": names[:3], "iid": names[3:]}


def asking(rounds, recipe):
    recipe["train_args"]["comm_round"] = rounds
    return recipe


def test_a_run_without_all_its_rounds_is_not_counted(tmp_path):
    runs = [
        folder(tmp_path / "a", asking(3, resolved(0)), [0.1, 0.5, 0.7]),
        folder(tmp_path / "b", asking(3, resolved(1)), [0.9, 0.9]),  # would be the baseline's best
        folder(tmp_path / "c", asking(3, resolved(0, "fedrs")), [0.7]),  # under way
        folder(tmp_path / "d", asking(3, resolved(0, "fedlc")), [0.1, 0.2, 0.3]),
    ]
    found = list(map(read, runs))
    rows = report.rows(grouped(found), 2)
    assert rows["accuracy"].tolist() == pytest.approx([60, 70, 25])
    assert numbers(rows, "rank", "rounds to baseline") == [[1, 3], [None, 1], [2, None]]
    assert [sorted(curve) for curve in rows["curve"]] == [[1, 2, 3], [1], [1, 2, 3]]
    assert report.texts(rows)["seeds"].tolist() == ["1 of 2", "0 of 1", "1"]
    assert report.texts(rows)["rank"].tolist() == ["1", "-", "2"]
    assert report.marks(rows)["accuracy"].tolist() == [1, 0, 2]
    split = report.texts(rows, split=True)
    assert split[["seeds", "unfinished"]].to_numpy().tolist() == [["1", "1"], ["0", "1"], ["1", "0"]]
    assert report.notes(rows, found) == [
        f"{tmp_path / 'b'}: 2 of 3 rounds: left out of its row",
        f"{tmp_path / 'c'}: 1 of 3 rounds: shown without a rank",
    ]


def test_a_seed_counts_once(tmp_path):
    found = [
        read(folder(tmp_path / name, asking(2, resolved(0)), accuracies))
        for name, accuracies in (("half", [0.1]), ("whole", [0.2, 0.3]), ("copy", [0.2, 0.3]))
    ]
    rows = report.rows(grouped(found), 1)
    assert rows[["accuracy", "unfinished"]].to_numpy().tolist() == [pytest.approx([30, 0])]
    assert report.notes(rows, found) == [
        f"{tmp_path / 'half'}: 1 of 2 rounds: left out of its row",
        f"{tmp_path / 'copy'}: the same recipe, data and seed as {tmp_path / 'whole'}: counted once",
    ]


def test_where_data_lie_is_no_experiment_and_precision_is_one(tmp_path):
    recipes = [resolved(seed) for seed in range(3)]
    recipes[1]["data_args"]["data_cache_dir"] = "elsewhere"
    recipes[1]["device_args"] = {"using_gpu": True}
    recipes[2]["device_args"] = {"precision": "bf16"}
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5]) for n, recipe in enumerate(recipes)))
    assert found[["seeds", "label"]].to_numpy().tolist() == [[2, "fedavg"], [1, "fedavg, precision=bf16"]]


def test_csv_has_a_column_for_each_number(tmp_path):
    cells = report.texts(rows_of(folder(tmp_path / "a", resolved(), [0.5]), last=1), split=True).iloc[0]
    assert [cells[name] for name in ("accuracy", "accuracy_std", "local model", "best", "best_std")] == [
        "50.00", "", "", "50.00", "",
    ]  # fmt: skip
    assert (cells["rounds to baseline"], cells["speedup"], cells["peak MB"]) == ("1", "1.00", "")


def test_rounds_until_the_baselines_best_as_in_fedmr_table_4(tmp_path):
    # FedAvg's best, 0.6, comes in round 4; the others are there after 2 rounds (4 / 2 = 2.00x), or never.
    runs = [
        folder(tmp_path / "avg", resolved(), [0.1, 0.2, 0.5, 0.6, 0.4]),
        folder(tmp_path / "rs", resolved(0, "fedrs"), [0.3, 0.6, 0.9, 0.2, 0.1]),
        folder(tmp_path / "lc", resolved(0, "fedlc"), [0.3, 0.5, 0.55, 0.5, 0.5]),
        folder(tmp_path / "prox", resolved(0, optimizer="FedProx"), [0.6, 0.7, 0.7, 0.7, 0.7]),
        folder(tmp_path / "other", resolved(0, "fedrs", partition="pcdd"), [0.9]),
    ]
    found = rows_of(*runs)
    assert numbers(found, "rounds to baseline", "speedup", "not within") == [
        [4, 1.0, None], [2, 2.0, None], [None, None, 5], [1, 4.0, None], [None, None, None],
    ]  # fmt: skip
    # Means of the last two: 50, 15, 50, 70; the other partition is a setting of its own.
    assert found["rank"].tolist() == [2, 4, 2, 1, 1]
    texts = report.texts(found)
    assert texts.columns[1] == "optimizer"
    assert texts["optimizer"].tolist() == ["FedAvg", "FedAvg", "FedAvg", "FedProx", "FedAvg"]
    assert texts["rounds to baseline"].tolist() == ["4 (1.00x)", "2 (2.00x)", "> 5", "1 (4.00x)", "-"]
    assert numbers(rows_of(*runs, baseline="fedrs"), "rounds to baseline") == [[None], [3], [None], [None], [1]]


def test_the_baseline_s_mean_over_the_seeds_is_what_counts(tmp_path):
    # Means 0.3, 0.5, 0.4: the best is 0.5 in round 2, though one seed had 0.8 in round 3.
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.2, 0.4, 0.8]),
        folder(tmp_path / "b", resolved(1), [0.4, 0.6, 0.0]),
        folder(tmp_path / "c", resolved(0, "fedrs"), [0.4, 0.45, 0.5]),
        folder(tmp_path / "d", resolved(1, "fedrs"), [0.4, 0.45, 0.5]),
    )
    assert numbers(found, "rounds to baseline", "speedup") == [[2, 1.0], [3, 2 / 3]]


def test_classes_are_means_over_tests_and_seeds(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.5, 0.5], recall=[0.2, None, 1.0]),
        folder(tmp_path / "b", resolved(1), [0.5], recall=[0.4, None, 0.0]),
    )
    assert found["recall"].tolist() == [pytest.approx([30, math.nan, 50], nan_ok=True)]


def test_several_methods_in_a_row_are_one_name(tmp_path):
    found = rows_of(folder(tmp_path / "a", resolved(0, ["fedshift", "fedmr"]), [0.5]))
    assert found["method"].tolist() == ["fedshift+fedmr"]


def test_partitions_of_one_name_are_settings_of_their_own(tmp_path):
    recipes = [resolved(), resolved()]
    for recipe, beta in zip(recipes, (0.1, 0.5), strict=True):
        recipe["partition_args"] = {"partition_method": "dirichlet", "beta": beta}
    recipes[1]["data_args"]["data_cache_dir"] = "elsewhere"  # no other setting
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5 - 0.1 * n]) for n, recipe in enumerate(recipes)))
    assert found["setting"].tolist() == ["dirichlet, beta=0.1", "dirichlet, beta=0.5"]
    assert found["rank"].tolist() == [1, 1]
    # The setting says it, the label need not; the column does.
    assert found["label"].tolist() == ["fedavg", "fedavg"]
    assert report.texts(found)["differs in"].tolist() == ["beta=0.1", "beta=0.5"]
    assert lines_of(found) == {"dirichlet, beta=0.1": ["fedavg"], "dirichlet, beta=0.5": ["fedavg"]}


def test_curves_gather_seeds_and_name_what_differs(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.1, 0.2]),
        folder(tmp_path / "b", resolved(1), [0.3, 0.4]),
        folder(tmp_path / "c", resolved(0, "fedrs", alpha=0.5), [0.5, 0.6]),
        folder(tmp_path / "d", resolved(0, "fedrs", alpha=0.9), [0.7, 0.8]),
    )
    assert report.curves(found)["iid"] == {
        "fedavg": {1: [0.1, 0.3], 2: [0.2, 0.4]},
        "fedrs, alpha=0.5": {1: [0.5], 2: [0.6]},
        "fedrs, alpha=0.9": {1: [0.7], 2: [0.8]},
    }


def of_data(path, recipe, place, data=None, partition=None, accuracies=(0.5,)):
    recipe["data_args"] = {"dataset": "npz", "data_cache_dir": place}
    made = folder(path, recipe, list(accuracies))
    known = {"data": data, "partition": partition}
    (made / "environment.json").write_text(json.dumps({k: v for k, v in known.items() if v is not None}))
    return made


def test_two_data_sets_are_two_experiments_and_settings_of_their_own(tmp_path):
    runs = [
        of_data(tmp_path / f"{name}{method}{seed}", resolved(seed, method), f"/data/{name}", name * 32, None, [value])
        for name, method, value in (("a", "fedavg", 0.5), ("b", "fedavg", 0.9), ("a", "fedrs", 0.6))
        for seed in (0, 1)
    ]
    whole = [read(run) for run in runs]
    found = report.rows(grouped(whole), 2)
    assert found[["seeds", "method", "rank", "setting"]].to_numpy().tolist() == [
        [2, "fedavg", 2, "iid, data_cache_dir=/data/a"],
        [2, "fedavg", 1, "iid, data_cache_dir=/data/b"],
        [2, "fedrs", 1, "iid, data_cache_dir=/data/a"],
    ]
    assert lines_of(found) == {
        "iid, data_cache_dir=/data/a": ["fedavg", "fedrs"], "iid, data_cache_dir=/data/b": ["fedavg"]
    }  # fmt: skip
    assert report.notes(found, whole) == []


def test_the_same_bytes_elsewhere_are_the_same_run(tmp_path):
    runs = [of_data(tmp_path / name, resolved(), f"/{name}", "f" * 32, f"{name}1") for name in ("a", "b")]
    found = [read(run) for run in runs]
    rows = report.rows(grouped(found), 2)
    assert rows["seeds"].tolist() == [1]
    assert report.notes(rows, found) == [f"{runs[1]}: the same recipe, data and seed as {runs[0]}: counted once"]


def test_a_folder_whose_data_changed_is_two_data_sets(tmp_path):
    found = rows_of(*(of_data(tmp_path / name, resolved(), "/d", name * 32) for name in ("a", "b")))
    assert found["setting"].tolist() == ["iid, fingerprint=aaaaaaaa", "iid, fingerprint=bbbbbbbb"]


def test_runs_that_did_not_write_their_data_down_are_told_apart_by_their_partitions(tmp_path):
    runs = [
        of_data(tmp_path / f"{name}{seed}", resolved(seed), f"/{name}", None, f"{name}{seed}")
        for name in ("a", "b")
        for seed in (0, 1)
    ]
    found = rows_of(*runs, of_data(tmp_path / "again", resolved(0), "/a", None, "a0"))
    assert [[run.name[-2:] for run in runs] for runs in found["runs"]] == [["a0", "a1"], ["b0", "b1"]]
    assert found["setting"].tolist() == ["iid, data_cache_dir=/a", "iid, data_cache_dir=/b"]
    # and beside one that did: the other seed of an earlier version may well belong to it
    late = of_data(tmp_path / "late", resolved(2), "/a", "a" * 32, "a2")
    assert rows_of(runs[0], runs[1], late)["seeds"].tolist() == [3]


def test_a_table_of_folders_is_what_the_command_prints_as_numbers(tmp_path):
    for seed, accuracy in enumerate((0.25, 0.75)):
        folder(tmp_path / str(seed), resolved(seed, "<b>"), [accuracy], seconds=[2.0])
    both = side_by_side.report([str(tmp_path)], last=1)
    table = both.table
    assert table.columns.tolist() == report.texts(rows_of(tmp_path / "0", tmp_path / "1"), split=True).columns.tolist()
    cells = table.iloc[0]
    assert (cells["accuracy"], cells["accuracy_std"]) == (50, pytest.approx(50 / 2**0.5))
    assert (cells["s/round"], cells["seeds"], cells["rank"]) == (2.0, 2, 1)
    assert "<td>&lt;b&gt;</td>" in both._repr_html_()  # as a notebook shows it
    with pytest.raises(MistakesError, match="no such folder"):
        side_by_side.report([tmp_path, tmp_path / "nope"])
    with pytest.raises(LabelSkewError, match="no runs to report on"):
        side_by_side.report([])


def test_seeds_in_another_order_share_a_rank(tmp_path):
    values = (0.1, 0.2, 0.3)
    assert added(values) != added(values[::-1])  # else nothing was tried
    runs = [
        folder(tmp_path / f"{method}{seed}", resolved(seed, method), [accuracy])
        for method, accuracies in (("fedavg", values), ("fedrs", values[::-1]))
        for seed, accuracy in enumerate(accuracies)
    ]
    assert rows_of(*runs)["rank"].tolist() == [1, 1]
