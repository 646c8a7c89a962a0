import json
import math

import pytest
from error_messages import message, mistakes
from fl_labelskew_registry import LabelSkewError, catalog, load
from run_folders import folder, resolved

from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.studies import printed, report
from fl_labelskew_plugins.studies.finished import grouped, read, read_all

FALLS = "! {}: best is {:.1f} points above accuracy, the mean of the last tests"
OF_CLIENTS = {"client_accuracy_mean": 0.5, "client_accuracy_worst": 0.25, "client_accuracy_std": 0.125}


def rows_of(*runs, last=2, baseline="fedavg"):
    return report.rows(grouped([read(run) for run in runs]), last, baseline)


def numbers(found, *names):
    return [[None if math.isnan(value) else value for value in line] for line in found[list(names)].to_numpy()]


def lines_of(found):
    return {setting: list(lines) for setting, lines in report.curves(found).items()}


def test_measures_per_client_have_columns_if_known(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.5, 0.5], **OF_CLIENTS),
        folder(tmp_path / "b", resolved(1), [0.5, 0.5], **OF_CLIENTS | {"client_accuracy_worst": 0.5}),
        folder(tmp_path / "c", resolved(0, "fedrs"), [0.5, 0.5]),
    )
    assert numbers(found, "own tests", "worst client", "spread") == [[50.0, 37.5, 12.5], [None, None, None]]
    texts = printed.texts(found)
    assert texts["worst client"].tolist() == ["37.50 ± 17.68", "-"]
    assert not printed.texts(found[1:]).columns.intersection(["own tests", "worst client", "spread"]).size


def test_rows_without_a_global_test_have_the_clients_accuracy(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [None] * 2, **OF_CLIENTS),
        folder(tmp_path / "b", resolved(0, "fedlc"), [None] * 2, **OF_CLIENTS | {"client_accuracy_mean": 0.75}),
    )
    texts = printed.texts(found)
    assert texts["test"].tolist() == ["clients' mean", "clients' mean"]
    assert numbers(found, "accuracy", "best", "worst client", "spread", "difference", "rank") == [
        [50, 50, 25, 12.5, None, 2], [75, 75, 25, 12.5, 25, 1],
    ]  # fmt: skip
    assert "own tests" not in texts
    assert report.curves(found) == {
        "iid, clients' mean": {"fedavg": {1: [0.5], 2: [0.5]}, "fedlc": {1: [0.75], 2: [0.75]}}
    }
    assert "test" in printed.texts(found, ["best"])
    assert report.only(found, ["iid", "fedlc"])["label"].tolist() == ["fedlc"]


def test_rows_with_different_tests_are_not_compared(tmp_path):
    runs = [
        folder(tmp_path / "a", resolved(0), [0.9, 0.9], client_accuracy_mean=0.2),
        folder(tmp_path / "b", resolved(0, "fedlc"), [None] * 2, client_accuracy_mean=0.5),
        folder(tmp_path / "c", resolved(1, "fedlc"), [None] * 2, client_accuracy_pooled=0.7, client_test_samples=30),
        folder(tmp_path / "d", resolved(0, "fedlc"), [0.8, 0.8]),
    ]
    found = rows_of(*runs)
    assert found["setting"].tolist() == ["iid", "iid, clients' mean", "iid, clients pooled", "iid"]
    assert numbers(found, "accuracy", "rank", "difference") == [
        [90, 1, None], [50, 1, None], [70, 1, None], [80, 2, pytest.approx(-10)],
    ]  # fmt: skip
    (line,) = report.notes(found, [])
    assert line.startswith("accuracies are on the global test set or on clients' own test splits, mean over the")
    assert "test" not in printed.texts(rows_of(runs[0], runs[3]))


def test_seeds_share_a_row_with_mean_and_std(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0), [0.1, 0.5, 0.7], personal=0.9, seconds=[1.0, 2.0, 3.0], bytes_up=3e6),
        folder(tmp_path / "b", resolved(1), [0.9, 0.4, None, 0.4], seconds=[4.0] * 4, bytes_up=3e6),
        folder(tmp_path / "c", resolved(0, "fedrs", alpha=0.5), [0.25]),
        folder(tmp_path / "d", resolved(0, "fedrs", alpha=1.0), [0.5], bytes_down=500_000),
    )
    texts = printed.texts(found)
    head, rows = texts.columns.tolist(), texts.to_numpy().tolist()
    assert head == [
        "method", "data", "partition", "seeds", "rounds", "accuracy", "best", "difference", "local model", "rank",
        "rounds to baseline", "MB up", "MB down", "s/round", "peak MB",
    ]  # fmt: skip
    # Means of the last two tests: (0.5 + 0.7) / 2 and 0.4; their sample std is 0.1 * sqrt(2).
    # The baseline's mean is 0.5, then 0.45; only rounds that both seeds have tested count. Seconds: (6 + 16) / 7.
    # Seed 0 of the baseline has 0.6: the others are 0.35 and 0.1 below it.
    first = ["fedavg", "digits", "iid", "2", "3-4", "50.00 ± 14.14", "80.00 ± 14.14 !", "-", "90.00", "1", "1 (1.00x)"]
    few = ["digits", "iid", "1", "1"]
    assert rows == [
        [*first, "3.000", "-", "3.14", "503"],
        ["fedrs, alpha=0.5", *few, "25.00", "25.00", "-35.00", "-", "3", "> 1", "-", "-", "-", "-"],
        ["fedrs, alpha=1.0", *few, "50.00", "50.00", "-10.00", "-", *first[-2:], "-", "0.500", "-", "-"],
    ]
    curves = report.curves(found)["iid"]
    assert [*curves] == [row[0] for row in rows]
    assert curves["fedavg"] == {1: [0.1, 0.9], 2: [0.5, 0.4], 3: [0.7], 4: [0.4]}
    # Equal cells are equally good; a single number is nothing to compare.
    marks = printed.marks(found)
    assert marks.columns.tolist() == head
    assert marks["accuracy"].tolist() == [1, 2, 1]
    assert marks["rounds to baseline"].tolist() == [1, 0, 1]
    assert not marks[["local model", "rank", "MB up"]].any(axis=None)


def test_local_models_are_named_and_not_compared(tmp_path):
    runs = {
        "avg": ("fedavg", 0.99, '{"personal_models": false}'),
        "lc": ("fedlc", 0.98, '{"personal_models": false}'),
        "map": ("map", 0.9, '{"personal_models": true}'),
        "rod": ("fedrod", 0.8, '{"personal_models": true}'),
        "php": ("fedphp", 0.7, '{"personal_models": true}'),
        "half": ("fedrs", 0.95, "{}"),
    }
    for name, (method, personal, environment) in runs.items():
        path = folder(tmp_path / name, resolved(0, method), [0.5], personal=personal)
        (path / "environment.json").write_text(environment)
    found = rows_of(*(tmp_path / name for name in runs))
    texts, marks = printed.texts(found), printed.marks(found)
    assert texts["personalised"].tolist() == ["-", "-", "90.00", "80.00", "70.00", "-"]
    assert texts["local model"].tolist() == ["99.00", "98.00", "-", "-", "-", "95.00"]
    assert marks["personalised"].tolist() == [0, 0, 1, 2, 0, 0]
    assert not marks["local model"].any()
    assert printed.texts(found, split=True)["local model"][0] == "99.00"
    assert "local model" not in printed.texts(found[2:4])
    assert "personalised" not in printed.texts(found[:2])


def test_methods_that_keep_a_model_for_each_client():
    plugins = {entry.name: load("methods", entry.name) for entry in catalog.entries("methods")}
    personal = {name for name, plugin in plugins.items() if plugin(plugin.Params()).personalises()}
    assert personal == {"map", "fedphp", "fedrod", "flda", "fedgela"}


def test_a_method_has_the_same_name_and_place_in_every_setting(tmp_path):
    # tau distinguishes two rows under pcdd, so iid shows it, too; differences between settings are not shown
    other = {"train": {"epochs": 2}}
    recipes = [
        resolved(0, "fedlc", "pcdd", tau=1.0), resolved(0, "fedlc", "pcdd", tau=3.0), resolved(0, "fedavg", "pcdd"),
        resolved(0, "fedlc", "iid", **other, tau=1.0), resolved(0, "fedavg", "iid", **other),
    ]  # fmt: skip
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5]) for n, recipe in enumerate(recipes)))
    names = found["label"].tolist()
    assert names == ["fedlc, tau=1.0", "fedlc, tau=3.0", "fedavg", "fedlc, tau=1.0", "fedavg"]
    assert lines_of(found) == {"pcdd": names[:3], "iid": names[3:]}


def test_an_unfinished_run_is_not_counted(tmp_path):
    three = {"comm_round": 3}
    runs = [
        folder(tmp_path / "a", resolved(0, train=three), [0.1, 0.5, 0.7]),
        folder(tmp_path / "b", resolved(1, train=three), [0.9, 0.9]),  # would be the baseline's best
        folder(tmp_path / "c", resolved(0, "fedrs", train=three), [0.7]),  # under way
        folder(tmp_path / "d", resolved(0, "fedlc", train=three), [0.1, 0.2, 0.3]),
    ]
    found = list(map(read, runs))
    rows = report.rows(grouped(found), 2)
    assert rows["accuracy"].tolist() == pytest.approx([60, 70, 25])
    assert numbers(rows, "rank", "rounds to baseline") == [[1, 3], [None, 1], [2, None]]
    assert [sorted(curve) for curve in rows["curve"]] == [[1, 2, 3], [1], [1, 2, 3]]
    assert printed.texts(rows)["seeds"].tolist() == ["1 of 2", "0 of 1", "1"]
    assert printed.texts(rows)["rank"].tolist() == ["1", "-", "2"]
    assert printed.marks(rows)["accuracy"].tolist() == [1, 0, 2]
    split = printed.texts(rows, split=True)
    assert split[["seeds", "unfinished"]].to_numpy().tolist() == [["1", "1"], ["0", "1"], ["1", "0"]]
    assert report.notes(rows, found, 2) == [
        f"{tmp_path / 'b'}: 2 of 3 rounds: excluded from its row",
        f"{tmp_path / 'c'}: 1 of 3 rounds: shown without a rank",
        FALLS.format(tmp_path / "a", 10.0),
        FALLS.format(tmp_path / "d", 5.0),
    ]


def test_a_best_round_far_above_the_last_tests_is_marked(tmp_path):
    falling = folder(tmp_path / "a", resolved(0), [0.9, 0.6, 0.6])
    steady = folder(tmp_path / "b", resolved(0, "fedlc"), [0.5, 0.61, 0.59])
    rows = rows_of(falling, steady)
    assert printed.texts(rows)[["accuracy", "best"]].to_numpy().tolist() == [["60.00", "90.00 !"], ["60.00", "61.00"]]
    assert printed.texts(rows, split=True)["best"].tolist() == ["90.00", "61.00"]
    assert report.notes(rows, [], 2) == [FALLS.format(falling, 30.0)]


def test_a_papers_number_names_the_column_to_compare(tmp_path):
    run = folder(tmp_path / "a", resolved(0), [0.5, 0.5])
    number = "{value: 81, measure: best_accuracy, paper: Someone 2020, table: Table 3}"
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text() + f"\nexpected: [{number}, {{value: much}}]\n")
    assert report.notes(rows_of(run), []) == ["fedavg: Someone 2020, Table 3: 81; compare it with the column best"]


def test_references_are_rows_of_their_own(tmp_path):
    runs = [folder(tmp_path / "a", resolved(0), [0.5])]
    for name in ("centralised", "local"):
        runs.append(folder(tmp_path / name, resolved(train={"reference": name}), [0.75]))
    rows = rows_of(*runs)
    assert rows["label"].tolist() == rows["method"].tolist() == ["fedavg", "centralised", "local"]
    assert rows["setting"].nunique() == 1
    assert rows["difference"].tolist()[1:] == [25, 25]


def test_a_seed_counts_once(tmp_path):
    found = [
        read(folder(tmp_path / name, resolved(train={"comm_round": 2}), accuracies))
        for name, accuracies in (("half", [0.1]), ("whole", [0.2, 0.3]), ("copy", [0.2, 0.3]))
    ]
    rows = report.rows(grouped(found), 1)
    assert rows[["accuracy", "unfinished"]].to_numpy().tolist() == [pytest.approx([30, 0])]
    assert report.notes(rows, found) == [
        f"{tmp_path / 'half'}: 1 of 2 rounds: excluded from its row",
        f"{tmp_path / 'copy'}: same recipe, data and seed as {tmp_path / 'whole'}: counted once",
        FALLS.format(tmp_path / "whole", 5.0),
    ]


def test_the_data_folder_is_not_a_setting_but_precision_is(tmp_path):
    recipes = [resolved(seed) for seed in range(3)]
    recipes[1]["data_args"]["data_cache_dir"] = "elsewhere"
    recipes[1]["device_args"] = {"using_gpu": True}
    recipes[2]["device_args"] = {"precision": "bf16"}
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5]) for n, recipe in enumerate(recipes)))
    assert found[["seeds", "label"]].to_numpy().tolist() == [[2, "fedavg"], [1, "fedavg, precision=bf16"]]


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
    assert numbers(found, "rounds to baseline", "speedup", "rounds without reaching") == [
        [4, 1.0, None], [2, 2.0, None], [None, None, 5], [1, 4.0, None], [None, None, None],
    ]  # fmt: skip
    # Means of the last two: 50, 15, 50, 70; the other partition is a separate setting.
    assert found["rank"].tolist() == [2, 4, 2, 1, 1]
    texts = printed.texts(found)
    assert texts["method"].tolist() == ["fedavg", "fedrs", "fedlc", "fedavg, FedProx", "fedrs"]
    machines = printed.texts(found, split=True)
    assert machines["optimizer"].tolist() == ["FedAvg", "FedAvg", "FedAvg", "FedProx", "FedAvg"]
    assert machines["method"].tolist() == ["fedavg", "fedrs", "fedlc", "fedavg", "fedrs"]
    assert texts["rounds to baseline"].tolist() == ["4 (1.00x)", "2 (2.00x)", "> 5", "1 (4.00x)", "-"]
    assert numbers(rows_of(*runs, baseline="fedrs"), "rounds to baseline") == [[None], [3], [None], [None], [1]]


def test_classes_are_means_over_tests_and_seeds_and_methods_have_one_name(tmp_path):
    found = rows_of(
        folder(tmp_path / "a", resolved(0, ["fedshift", "fedmr"]), [0.5, 0.5], recall=[0.2, None, 1.0]),
        folder(tmp_path / "b", resolved(1, ["fedshift", "fedmr"]), [0.5], recall=[0.4, None, 0.0]),
    )
    assert found["method"].tolist() == ["fedshift+fedmr"]
    assert found["recall"].tolist() == [pytest.approx([30, math.nan, 50], nan_ok=True)]


def test_every_partition_is_a_setting_named_with_its_required_parameters(tmp_path):
    given = {
        "dirichlet": {"beta": 0.1, "min_samples": 1, "capped": True}, "iid": {}, "natural": {},
        "pcdd": {"classes_per_client": 2}, "quantity": {"sets_per_client": 3},
        "shards": {"shards_per_client": 5}, "not_installed": {"a": 1},
        "named": {"clients": {"north": {"0": "all"}, "south": {"1": 5}}},
    }  # fmt: skip
    assert set(given) - {"not_installed"} == {entry.name for entry in catalog.entries("partitioners")}
    partitions = [{"partition_method": name, **parameters} for name, parameters in given.items()]
    partitions.append({"partition_method": "dirichlet", "beta": 0.5})
    recipes = [resolved() | {"partition_args": partition} for partition in partitions]
    recipes[-1]["data_args"]["data_cache_dir"] = "elsewhere"  # no other setting
    found = rows_of(*(folder(tmp_path / str(n), recipe, [0.5 - 0.01 * n]) for n, recipe in enumerate(recipes)))
    names = ["dirichlet 0.1", "iid", "natural", "pcdd 2", "quantity 3", "shards 5", "not_installed"]
    names += ["named north, south", "dirichlet 0.5"]
    assert found["setting"].tolist() == found["partition"].tolist() == names
    assert found[["rank", "label", "differs in"]].to_numpy().tolist() == [[1, "fedavg", ""]] * 9
    assert lines_of(found) == {name: ["fedavg"] for name in names}


def of_seeds(path, method, accuracies, partition="iid", first=0, **method_args):
    path.mkdir(exist_ok=True)
    for seed, accuracy in enumerate(accuracies, first):
        yield folder(path / f"{partition}-{method}{seed}", resolved(seed, method, partition, **method_args), [accuracy])


# Student's t, two-sided 5 %, as any textbook's table prints it: degrees of freedom to the critical value
@pytest.mark.parametrize(
    ("freedom", "critical"), {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}.items()
)
def test_interval_is_that_of_the_printed_t_table(freedom, critical):
    differences = [0.3 + 0.7 * (-1) ** k + 0.05 * k for k in range(freedom + 1)]
    middle = sum(differences) / len(differences)
    variance = sum((value - middle) ** 2 for value in differences) / freedom
    half = critical * math.sqrt(variance / len(differences))
    assert report.interval(differences) == pytest.approx((middle - half, middle + half), abs=2e-3 * half)


@pytest.mark.parametrize("differences", [[2.0], [2.0, 2.0], [0.0, 0.0, 0.0]])
def test_equal_differences_have_no_interval(differences):
    assert all(map(math.isnan, report.interval(differences)))


def test_differences_are_paired_by_seed_and_classified_by_their_interval(tmp_path):
    # Seeds differ by 40 per cent, methods by one or two: only in pairs can that be seen.
    found = rows_of(
        *of_seeds(tmp_path, "fedavg", [0.30, 0.50, 0.70]),
        *of_seeds(tmp_path, "fedlc", [0.31, 0.52, 0.73]),  # +1, +2, +3: 2 ± 4.303 / sqrt(3)
        *of_seeds(tmp_path, "fedrs", [0.32, 0.5201, 0.7199]),  # +2, +2.01, +1.99
        *of_seeds(tmp_path, "map", [0.499, 0.695, 0.9], first=1),  # seeds 1, 2 and 3: -0.1 and -0.5
        *of_seeds(tmp_path, "moon", [0.1], first=7),
        *of_seeds(tmp_path, "fedrs", [0.9], "pcdd"),
    )
    differences = [None, pytest.approx(2), pytest.approx(2), pytest.approx(-0.3), None, None]
    assert [value for (value,) in numbers(found, "difference")] == differences
    texts = printed.texts(found)
    assert texts["difference"].tolist() == [
        "-", "+2.00 [-0.48, 4.48]", "+2.00 [1.98, 2.02] better", "-0.30 [-2.84, 2.24]", "-", "-",
    ]  # fmt: skip
    assert texts["pairs"].tolist() == ["-", "3", "3", "2", "-", "-"]  # shown, since they are fewer than the seeds
    other = printed.texts(rows_of(*found["runs"].explode().map(lambda run: tmp_path / run.name), baseline="fedrs"))
    assert other["difference"][0] == "-2.00 [-2.02, -1.98] worse"
    equal = rows_of(*(tmp_path / f"iid-{method}{seed}" for method in ("fedavg", "fedlc") for seed in (0, 1)))
    assert "pairs" not in printed.texts(equal)


def test_a_baseline_may_be_the_name_of_a_row(tmp_path):
    runs = *of_seeds(tmp_path / "a", "fedlc", [0.5], tau=1.0), *of_seeds(tmp_path / "b", "fedlc", [0.6], tau=5.0)
    found = rows_of(*runs, baseline="fedlc, tau=5.0")
    assert numbers(found, "difference") == [[pytest.approx(-10)], [None]]


def test_rounding_is_not_a_difference(tmp_path):
    # of 360 samples, in three tests
    hits = {"fedavg": [[4, 10, 16], [7, 14, 19]], "fedlc": [[5, 9, 16], [8, 14, 18]]}
    runs = [
        folder(tmp_path / f"{method}{seed}", resolved(seed, method), [right / 360 for right in tests])
        for method, seeds in hits.items()
        for seed, tests in enumerate(seeds)
    ]
    found = rows_of(*runs, last=3)
    assert found["accuracy"].nunique() == 2
    assert printed.texts(found)["difference"].tolist() == ["-", "+0.00"]


def test_chosen_columns_come_in_their_order_and_with_their_parts(tmp_path):
    found = rows_of(*of_seeds(tmp_path, "fedavg", [0.5, 0.6]), *of_seeds(tmp_path, "fedrs", [0.7, 0.8]))
    columns = ["best", "peak GPU MB", "difference", "accuracy"]
    texts = printed.texts(found, columns)
    assert texts.columns.tolist() == ["method", "data", "partition", *columns]
    assert texts.iloc[1].tolist()[3:] == ["75.00 ± 7.07", "-", "+20.00", "75.00 ± 7.07"]
    assert printed.marks(found, columns).iloc[1].tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert printed.texts(found, columns, split=True).columns.tolist()[-8:] == [
        "best", "best_std", "peak GPU MB", "difference", "difference_low", "difference_high", "accuracy",
        "accuracy_std",
    ]  # fmt: skip


def test_selected_rows_are_ranked_among_each_other(tmp_path):
    found = rows_of(
        *of_seeds(tmp_path, "fedavg", [0.5]),
        *of_seeds(tmp_path / "a", "fedlc", [0.6], tau=1.0),
        *of_seeds(tmp_path / "b", "fedlc", [0.7], tau=5.0),
        *of_seeds(tmp_path, "fedrs", [0.8]),
        *of_seeds(tmp_path, "fedavg", [0.9], "pcdd"),
    )

    def names(*chosen):
        return report.only(found, chosen)[["label", "setting", "rank"]].to_numpy().tolist()

    assert names() == found[["label", "setting", "rank"]].to_numpy().tolist()
    assert names("fedlc") == [["fedlc, tau=1.0", "iid", 2], ["fedlc, tau=5.0", "iid", 1]]
    assert names("fedlc, tau=1.0", "fedavg", "iid") == [["fedavg", "iid", 2], ["fedlc, tau=1.0", "iid", 1]]
    assert names("pcdd") == [["fedavg", "pcdd", 1]]
    assert report.only(found, ["fedlc"])["difference"].tolist() == pytest.approx([10, 20])  # from one not shown
    with pytest.raises(LabelSkewError, match=r"'fedlx' .* allowed: fedavg, 'fedlc, tau=1.0', .* did you mean fedlc"):
        names("fedlx")
    assert "--only: no row matches all these names; use fewer names" in message(lambda: names("fedrs", "pcdd"))


def swept(path, names, recipes):
    """Folders of runs, and a sweep's names for their settings and labels."""
    named = {name: {"setting": setting, "label": label} for name, (setting, label) in names.items()}
    (path / "sweep.json").write_text(json.dumps(named))
    for name, recipe in recipes.items():
        folder(path / name, recipe, [0.5])


def named(tmp_path):
    found = report.rows(grouped(read_all([tmp_path])[0]), 2)
    return found[["label", "setting", "partition setting"]].to_numpy().tolist()


def test_rows_and_settings_have_names_and_order_of_their_sweep(tmp_path):
    recipes = {
        "one": resolved(0, "fedlc", tau=5.0), "two": resolved(1, "fedlc", tau=5.0), "a": resolved(0, "fedlc", tau=1.0),
        "other": resolved(0, "fedavg", "pcdd"),
    }  # fmt: skip
    names = dict.fromkeys(("one", "two"), ("flat", "strong")) | {"other": ("skew\x1b", "plain"), "a": ("flat", "mild")}
    swept(tmp_path, names, recipes)
    assert named(tmp_path) == [["strong", "flat", "flat"], ["plain", "skew?", "skew?"], ["mild", "flat", "flat"]]
    # not all have a name: keys show the difference
    folder(tmp_path / "z", resolved(0, "fedrs"), [0.5])
    assert [label for label, *_ in named(tmp_path)] == ["fedlc, tau=5.0", "fedavg", "fedlc, tau=1.0", "fedrs"]


ONE_SETTING = {"a": resolved(0, "fedlc", tau=5.0), "b": resolved(0, "fedlc", tau=1.0)}
TWO_SETTINGS = {"a": resolved(0, "fedavg"), "b": resolved(0, "fedlc", "pcdd")}


@pytest.mark.parametrize(
    ("recipes", "a", "b", "says"),
    [
        (ONE_SETTING, ("x", "m"), ("x", "m"), [["fedlc, tau=5.0", "x", "x"], ["fedlc, tau=1.0", "x", "x"]]),
        (ONE_SETTING, ("x", "m"), ("y", "n"), [["m", "iid", "iid"], ["n", "iid", "iid"]]),  # would not be compared
        # a line of a pivot, and a colour, are of one method
        (TWO_SETTINGS, ("x", "base"), ("y", "base"), [["fedavg", "x", "x"], ["fedlc", "y", "y"]]),
        (TWO_SETTINGS, ("x", "m"), ("method", "n"), [["m", "iid", "iid"], ["n", "pcdd", "pcdd"]]),  # a pivot's own name
    ],
)
def test_ambiguous_names_of_a_sweep_are_not_used(tmp_path, recipes, a, b, says):
    swept(tmp_path, {"a": a, "b": b}, recipes)
    assert named(tmp_path) == says


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"a": 1}', "\xff", "[" * 200_000, '{"a": {"setting": "", "label": ""}}']
)
def test_a_damaged_file_of_names_is_ignored(tmp_path, content):
    folder(tmp_path / "a", resolved(), [0.5])
    (tmp_path / "sweep.json").write_text(content)
    assert named(tmp_path) == [["fedavg", "iid", "iid"]]


def of_data(path, recipe, place, data, accuracies=(0.5,)):
    recipe["data_args"] = {"dataset": "npz", "data_cache_dir": place}
    made = folder(path, recipe, list(accuracies))
    (made / "environment.json").write_text(json.dumps({"data": data}))
    return made


def test_two_data_sets_are_two_experiments(tmp_path):
    runs = [
        of_data(tmp_path / f"{name}{method}{seed}", resolved(seed, method), f"/data/{name}", name * 32, [value])
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


@pytest.mark.parametrize(
    ("places", "data", "settings"),
    [(("/a", "/b"), "ff", ["iid"]), (("/d", "/d"), "ab", ["iid, fingerprint=aaaaaaaa", "iid, fingerprint=bbbbbbbb"])],
)
def test_the_bytes_of_the_data_decide_and_not_their_folder(tmp_path, places, data, settings):
    runs = [of_data(tmp_path / name, resolved(), places[n], data[n] * 32) for n, name in enumerate("ab")]
    found = [read(run) for run in runs]
    rows = report.rows(grouped(found), 2)
    assert rows["setting"].tolist() == settings
    notes = [f"{runs[1]}: same recipe, data and seed as {runs[0]}: counted once"]
    assert report.notes(rows, found) == (notes if len(settings) == 1 else [])


def test_the_table_from_python_equals_the_printed_numbers(tmp_path):
    for seed, accuracy in enumerate((0.25, 0.75)):
        folder(tmp_path / str(seed), resolved(seed, "<b>"), [accuracy], seconds=[2.0])
    both = printed.report([str(tmp_path)], last=1)
    table = both.table
    assert table.columns.tolist() == printed.texts(rows_of(tmp_path / "0", tmp_path / "1"), split=True).columns.tolist()
    cells = table.iloc[0]
    assert (cells["accuracy"], cells["accuracy_std"]) == (50, pytest.approx(50 / 2**0.5))
    assert (cells["s/round"], cells["seeds"], cells["rank"]) == (2.0, 2, 1)
    assert "<td>&lt;b&gt;</td>" in both._repr_html_()  # as a notebook shows it
    assert mistakes(lambda: printed.report([tmp_path, tmp_path / "nope"])) == [f"{tmp_path}/nope: no such folder"]
    assert "no runs to report" in message(lambda: printed.report([]))


def test_seeds_in_another_order_share_a_rank(tmp_path):
    values = (0.1, 0.2, 0.3)
    assert added(values) != added(values[::-1])  # else nothing was tried
    runs = *of_seeds(tmp_path, "fedavg", values), *of_seeds(tmp_path, "fedrs", values[::-1])
    assert rows_of(*runs)["rank"].tolist() == [1, 1]
