"""The table over run folders, from folders made by hand."""

import json

import pytest
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins import plain_yaml, report


def resolved(seed=0, method="fedavg", **method_args):
    return {
        "common_args": {"random_seed": seed},
        "data_args": {"dataset": "digits"},
        "partition_args": {"partition_method": "iid"},
        "method_args": {"method": method, **method_args},
        "tracking_args": {"run_dir": f"runs{seed}"},
    }


def folder(path, recipe, accuracies, personal=None):
    path.mkdir()
    (path / "recipe.yaml").write_text(plain_yaml.write(recipe))
    lines = [{"round": r} if a is None else {"round": r, "accuracy": a} for r, a in enumerate(accuracies)]
    if personal is not None:
        lines[-1]["personalised_accuracy"] = personal
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_seeds_share_a_row_with_mean_and_std(tmp_path):
    runs, missing = report.read_all(
        [
            folder(tmp_path / "a", resolved(0), [0.1, 0.5, 0.7], personal=0.9),
            folder(tmp_path / "b", resolved(1), [0.9, 0.4, None, 0.4]),
            folder(tmp_path / "c", resolved(0, "fedrs", alpha=0.5), [0.25]),
            folder(tmp_path / "d", resolved(0, "fedrs", alpha=1.0), [0.5]),
        ]
    )
    assert missing == []
    head, rows = report.table(report.grouped(runs), last=2)
    assert head == ("method", "data", "partition", "differs in", "seeds", "rounds", "accuracy", "personalised", "best")
    # Means of the last two tests: (0.5 + 0.7) / 2 and 0.4; their sample std is 0.1 * sqrt(2).
    assert rows == [
        ["fedavg", "digits", "iid", "", "2", "3-4", "50.00 ± 14.14", "90.00", "80.00 ± 14.14"],
        ["fedrs", "digits", "iid", "alpha=0.5", "1", "1", "25.00", "-", "25.00"],
        ["fedrs", "digits", "iid", "alpha=1.0", "1", "1", "50.00", "-", "50.00"],
    ]


def test_csv_has_a_column_for_each_number(tmp_path):
    runs, _ = report.read_all([folder(tmp_path / "a", resolved(), [0.5])])
    head, rows = report.table(report.grouped(runs), last=1, split=True)
    assert head[-6:] == ("accuracy", "accuracy_std", "personalised", "personalised_std", "best", "best_std")
    assert rows[0][-6:] == ["50.00", "", "", "", "50.00", ""]


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


def junk_metrics(path):
    (path / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_metrics, "no run: metrics.jsonl is missing"),
        (no_tests, "no results yet: metrics.jsonl has no test"),
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
    runs = [
        report.read(folder(tmp_path / "a", resolved(0), [0.1, 0.2])),
        report.read(folder(tmp_path / "b", resolved(1), [0.3, 0.4])),
        report.read(folder(tmp_path / "c", resolved(0, "fedrs", alpha=0.5), [0.5, 0.6])),
        report.read(folder(tmp_path / "d", resolved(0, "fedrs", alpha=0.9), [0.7, 0.8])),
    ]
    assert report.curves(report.grouped(runs)) == {
        "fedavg": {1: [0.1, 0.3], 2: [0.2, 0.4]},
        "fedrs, alpha=0.5": {1: [0.5], 2: [0.6]},
        "fedrs, alpha=0.9": {1: [0.7], 2: [0.8]},
    }
