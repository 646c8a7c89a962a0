"""The table over run folders, from folders made by hand."""

import json

import pytest
from fl_labelskew_registry import LabelSkewError, catalog, load

from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.studies import report


def resolved(seed=0, method="fedavg", partition="iid", optimizer="FedAvg", **method_args):
    return {
        "common_args": {"random_seed": seed},
        "data_args": {"dataset": "digits"},
        "partition_args": {"partition_method": partition},
        "train_args": {"federated_optimizer": optimizer},
        "method_args": {"method": method, **method_args},
        "tracking_args": {"run_dir": f"runs{seed}"},
    }


def folder(path, recipe, accuracies, personal=None, seconds=(), **more):
    path.mkdir()
    (path / "recipe.yaml").write_text(yaml.write(recipe))
    lines = [{"round": r, **more} | ({} if a is None else {"accuracy": a}) for r, a in enumerate(accuracies)]
    if personal is not None:
        lines[-1]["personalised_accuracy"] = personal
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timings = [{"round": r, "seconds": s, "peak_mb": 500.0 + r} for r, s in enumerate(seconds)]
    if timings:
        (path / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    return path


def rows_of(*runs, last=2, baseline="fedavg"):
    return report.rows(report.grouped([report.read(run) for run in runs]), last, baseline)


def test_seeds_share_a_row_with_mean_and_std(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.1, 0.5, 0.7], personal=0.9, seconds=[1.0, 2.0, 3.0], bytes_up=3e6),
        folder(tmp_path / "b", resolved(1), [0.9, 0.4, None, 0.4], seconds=[4.0] * 4, bytes_up=3e6),
        folder(tmp_path / "c", resolved(0, "fedrs", alpha=0.5), [0.25]),
        folder(tmp_path / "d", resolved(0, "fedrs", alpha=1.0), [0.5], bytes_down=500_000),
    )
    head, rows = report.table(found)
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
    marked = {(row, head[c]): mark for row, line in enumerate(report.marks(found)) for c, mark in enumerate(line)}
    assert [marked[row, "accuracy"] for row in range(3)] == [1, 2, 1]
    assert [marked[row, "rounds to baseline"] for row in range(3)] == [1, 0, 1]
    assert {mark for (_, name), mark in marked.items() if name in ("local model", "rank", "MB up")} == {0}


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
    head, cells = report.table(found)
    personalised, local = head.index("personalised"), head.index("local model")
    assert [(line[personalised], line[local]) for line in cells] == [
        ("-", "99.00"), ("-", "98.00"), ("90.00", "-"), ("80.00", "-"), ("70.00", "-"), ("-", "95.00"),
    ]  # fmt: skip
    assert [(mine[personalised], mine[local]) for mine in report.marks(found)] == [
        (0, 0), (0, 0), (1, 0), (2, 0), (0, 0), (0, 0),
    ]  # fmt: skip
    split, (first, *_) = report.table(found, split=True)
    assert dict(zip(split, first, strict=True))["local model"] == "99.00"
    assert "local model" not in report.table(found[2:4])[0]
    assert "personalised" not in report.table(found[:2])[0]


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
    names = [report.label(row) for row in found]
    assert names == ["fedlc, tau=1.0", "fedlc, tau=3.0", "fedavg", "fedlc, tau=1.0", "fedavg"]
    assert {setting: list(lines) for setting, lines in report.curves(found).items()} == {
        "pcdd": names[:3], "iid": names[3:],
    }  # fmt: skip


def asking(rounds, recipe):
    recipe["train_args"]["comm_round"] = rounds
    return recipe


def test_a_run_without_all_its_rounds_is_not_counted(tmp_path):
    found = [
        report.read(each)
        for each in (
            folder(tmp_path / "a", asking(3, resolved(0)), [0.1, 0.5, 0.7]),
            folder(tmp_path / "b", asking(3, resolved(1)), [0.9, 0.9]),  # would be the baseline's best
            folder(tmp_path / "c", asking(3, resolved(0, "fedrs")), [0.7]),  # under way
            folder(tmp_path / "d", asking(3, resolved(0, "fedlc")), [0.1, 0.2, 0.3]),
        )
    ]
    rows = report.rows(report.grouped(found), 2)
    assert [row.accuracy for row in rows] == [[pytest.approx(60)], [pytest.approx(70)], [pytest.approx(25)]]
    assert [(row.rank, row.to_baseline, sorted(row.curve)) for row in rows] == [
        (1, 3, [1, 2, 3]), (None, 1, [1]), (2, None, [1, 2, 3]),
    ]  # fmt: skip
    head, cells = report.table(rows)
    assert [line[head.index("seeds")] for line in cells] == ["1 of 2", "0 of 1", "1"]
    assert [line[head.index("rank")] for line in cells] == ["1", "-", "2"]
    assert [mine[head.index("accuracy")] for mine in report.marks(rows)] == [1, 0, 2]
    head, cells = report.table(rows, split=True)
    assert [(line[head.index("seeds")], line[head.index("unfinished")]) for line in cells] == [
        ("1", "1"), ("0", "1"), ("1", "0"),
    ]  # fmt: skip
    assert report.notes(rows, found) == [
        f"{tmp_path / 'b'}: 2 of 3 rounds: left out of its row",
        f"{tmp_path / 'c'}: 1 of 3 rounds: shown without a rank",
    ]


def test_a_seed_counts_once(tmp_path):
    found = [
        report.read(folder(tmp_path / name, asking(2, resolved(0)), accuracies))
        for name, accuracies in (("half", [0.1]), ("whole", [0.2, 0.3]), ("copy", [0.2, 0.3]))
    ]
    (row,) = report.rows(report.grouped(found), 1)
    assert (row.accuracy, row.unfinished) == ([pytest.approx(30)], 0)
    assert report.notes([row], found) == [
        f"{tmp_path / 'half'}: 1 of 2 rounds: left out of its row",
        f"{tmp_path / 'copy'}: the same recipe, data and seed as {tmp_path / 'whole'}: counted once",
    ]


def test_where_data_lie_is_no_experiment_and_precision_is_one(tmp_path):
    recipes = [resolved(seed) for seed in range(3)]
    recipes[1]["data_args"]["data_cache_dir"] = "elsewhere"
    recipes[1]["device_args"] = {"using_gpu": True}
    recipes[2]["device_args"] = {"precision": "bf16"}
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5]) for n, recipe in enumerate(recipes)))
    assert [(len(row.runs), report.label(row)) for row in found] == [(2, "fedavg"), (1, "fedavg, precision=bf16")]


def test_csv_has_a_column_for_each_number(tmp_path):
    head, rows = report.table(rows_of(folder(tmp_path / "a", resolved(), [0.5]), last=1), split=True)
    cells = dict(zip(head, rows[0], strict=True))
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
    assert [(row.to_baseline, row.speedup, row.baseline) for row in found] == [
        (4, 1.0, True), (2, 2.0, True), (None, None, True), (1, 4.0, True), (None, None, False),
    ]  # fmt: skip
    # Means of the last two: 50, 15, 50, 70; the other partition is a setting of its own.
    assert [row.rank for row in found] == [2, 4, 2, 1, 1]
    head, rows = report.table(found)
    assert head[1] == "optimizer"
    assert [row[1] for row in rows] == ["FedAvg", "FedAvg", "FedAvg", "FedProx", "FedAvg"]
    column = head.index("rounds to baseline")
    assert [row[column] for row in rows] == ["4 (1.00x)", "2 (2.00x)", "> 5", "1 (4.00x)", "-"]
    assert [row.to_baseline for row in rows_of(*runs, baseline="fedrs")] == [None, 3, None, None, 1]


def test_the_baseline_s_mean_over_the_seeds_is_what_counts(tmp_path):
    # Means 0.3, 0.5, 0.4: the best is 0.5 in round 2, though one seed had 0.8 in round 3.
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.2, 0.4, 0.8]),
        folder(tmp_path / "b", resolved(1), [0.4, 0.6, 0.0]),
        folder(tmp_path / "c", resolved(0, "fedrs"), [0.4, 0.45, 0.5]),
        folder(tmp_path / "d", resolved(1, "fedrs"), [0.4, 0.45, 0.5]),
    )
    assert [(row.to_baseline, row.speedup) for row in found] == [(2, 1.0), (3, 2 / 3)]


def test_classes_are_means_over_tests_and_seeds(tmp_path):
    (row,) = rows_of(
        folder(tmp_path / "a", resolved(0), [0.5, 0.5], recall=[0.2, None, 1.0]),
        folder(tmp_path / "b", resolved(1), [0.5], recall=[0.4, None, 0.0]),
    )
    assert row.recall == [pytest.approx(30), None, pytest.approx(50)]


def test_several_methods_in_a_row_are_one_name(tmp_path):
    (row,) = rows_of(folder(tmp_path / "a", resolved(0, ["fedshift", "fedmr"]), [0.5]))
    assert row.method == "fedshift+fedmr"


def test_partitions_of_one_name_are_settings_of_their_own(tmp_path):
    recipes = [resolved(), resolved()]
    for recipe, beta in zip(recipes, (0.1, 0.5), strict=True):
        recipe["partition_args"] = {"partition_method": "dirichlet", "beta": beta}
    recipes[1]["data_args"]["data_cache_dir"] = "elsewhere"  # no other setting
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5 - 0.1 * n]) for n, recipe in enumerate(recipes)))
    assert [row.setting for row in found] == ["dirichlet, beta=0.1", "dirichlet, beta=0.5"]
    assert [row.rank for row in found] == [1, 1]
    # The setting says it, the label need not; the column does.
    assert [report.label(row) for row in found] == ["fedavg", "fedavg"]
    head, cells = report.table(found)
    assert [line[head.index("differs in")] for line in cells] == ["beta=0.1", "beta=0.5"]
    assert {setting: list(lines) for setting, lines in report.curves(found).items()} == {
        "dirichlet, beta=0.1": ["fedavg"], "dirichlet, beta=0.5": ["fedavg"],
    }  # fmt: skip


def test_a_folder_of_run_folders_stands_for_all_of_them(tmp_path):
    a = folder(tmp_path / "a", resolved(0), [0.5])
    (tmp_path / "deep").mkdir()
    b = folder(tmp_path / "deep" / "b", resolved(1), [0.5])
    folder(b / "silo-1", resolved(2), [0.5])  # belongs to the run
    assert report.folders([tmp_path]) == [a, b]
    assert report.folders([b, tmp_path]) == [b, a]
    assert [len(row.runs) for row in report.rows(report.grouped(report.read_all([tmp_path])[0]), 1)] == [2]


def test_a_line_cut_in_half_ends_the_metrics(tmp_path):
    path = folder(tmp_path / "a", resolved(), [0.5, 0.6])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accu')
    assert len(report.read(path).metrics) == 2


def no_metrics(path):
    (path / "metrics.jsonl").unlink()


def no_tests(path):
    (path / "metrics.jsonl").write_text('{"round": 0}\n')


def no_recipe(path):
    (path / "recipe.yaml").unlink()


def list_as_recipe(path):
    (path / "recipe.yaml").write_text("[1]")


def broken_recipe(path):
    (path / "recipe.yaml").write_text("a: [")


def odd_test(path):
    (path / "metrics.jsonl").write_text('{"round": "<b>", "accuracy": 1}\n')


def no_number(path):
    (path / "metrics.jsonl").write_text('{"round": 0, "accuracy": NaN}\n')


def junk_metrics(path):
    (path / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_metrics, "no run: metrics.jsonl is missing"),
        (no_tests, "no results yet: metrics.jsonl has no test"),
        (odd_test, "no run: metrics.jsonl has a test without round and accuracy"),
        (no_number, "no run: metrics.jsonl has a test without round and accuracy"),
        (no_recipe, "no run: recipe.yaml is missing"),
        (list_as_recipe, "no run: recipe.yaml holds no recipe"),
        (broken_recipe, "cannot be read: line 1, column 5"),
        (junk_metrics, "cannot be read: 'utf-8' codec"),
    ],
)
def test_a_folder_without_results_is_one_line(tmp_path, spoil, message):
    path = folder(tmp_path / "a", resolved(), [0.5])
    spoil(path)
    with pytest.raises(LabelSkewError) as error:
        report.read(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_no_such_folder(tmp_path):
    assert report.read_all([tmp_path / "nope"]) == ([], [f"{tmp_path / 'nope'}: no such folder"])


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
        of_data(
            tmp_path / f"{name}-{method}-{seed}",
            resolved(seed, method),
            f"/data/{name}",
            name * 32,
            accuracies=[accuracy],
        )
        for name, method, accuracy in (("a", "fedavg", 0.5), ("b", "fedavg", 0.9), ("a", "fedrs", 0.6))
        for seed in (0, 1)
    ]
    read = [report.read(run) for run in runs]
    found = report.rows(report.grouped(read), 2)
    assert [(len(row.runs), row.method, row.rank, row.setting) for row in found] == [
        (2, "fedavg", 2, "iid, data_cache_dir=/data/a"),
        (2, "fedavg", 1, "iid, data_cache_dir=/data/b"),
        (2, "fedrs", 1, "iid, data_cache_dir=/data/a"),
    ]
    assert {setting: list(curves) for setting, curves in report.curves(found).items()} == {
        "iid, data_cache_dir=/data/a": ["fedavg", "fedrs"], "iid, data_cache_dir=/data/b": ["fedavg"]
    }  # fmt: skip
    assert report.notes(found, read) == []


def test_the_same_bytes_elsewhere_are_the_same_run(tmp_path):
    runs = [of_data(tmp_path / name, resolved(), f"/{name}", "f" * 32, f"{name}1") for name in ("a", "b")]
    found = [report.read(run) for run in runs]
    rows = report.rows(report.grouped(found), 2)
    assert [len(row.runs) for row in rows] == [1]
    assert report.notes(rows, found) == [f"{runs[1]}: the same recipe, data and seed as {runs[0]}: counted once"]


def test_a_folder_whose_data_changed_is_two_data_sets(tmp_path):
    found = rows_of(*(of_data(tmp_path / name, resolved(), "/d", name * 32) for name in ("a", "b")))
    assert [row.setting for row in found] == ["iid, fingerprint=aaaaaaaa", "iid, fingerprint=bbbbbbbb"]


def test_runs_that_did_not_write_their_data_down_are_told_apart_by_their_partitions(tmp_path):
    runs = [
        of_data(tmp_path / f"{name}{seed}", resolved(seed), f"/{name}", None, f"{name}{seed}")
        for name in ("a", "b")
        for seed in (0, 1)
    ]
    found = rows_of(*runs, of_data(tmp_path / "again", resolved(0), "/a", None, "a0"))
    assert [[run.name[-2:] for run in row.runs] for row in found] == [["a0", "a1"], ["b0", "b1"]]
    assert [row.setting for row in found] == ["iid, data_cache_dir=/a", "iid, data_cache_dir=/b"]
    # and beside one that did: the other seed of an earlier version may well belong to it
    late = of_data(tmp_path / "late", resolved(2), "/a", "a" * 32, "a2")
    assert [len(row.runs) for row in rows_of(runs[0], runs[1], late)] == [3]
