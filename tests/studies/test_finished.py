"""Runs read from folders made by hand."""

import pytest
from fl_labelskew_registry import LabelSkewError
from run_folders import folder, resolved

from fl_labelskew_plugins.studies import finished


def test_a_folder_of_run_folders_stands_for_all_of_them(tmp_path):
    a = folder(tmp_path / "a", resolved(0), [0.5])
    (tmp_path / "deep").mkdir()
    b = folder(tmp_path / "deep" / "b", resolved(1), [0.5])
    folder(b / "silo-1", resolved(2), [0.5])  # belongs to the run
    assert finished.folders([tmp_path]) == [a, b]
    assert finished.folders([b, tmp_path]) == [b, a]
    assert [len(group) for group in finished.grouped(finished.read_all([tmp_path])[0])] == [2]


def test_a_line_cut_in_half_ends_the_metrics(tmp_path):
    path = folder(tmp_path / "a", resolved(), [0.5, 0.6])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accu')
    assert len(finished.read(path).metrics) == 2


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
        (junk_metrics, "no results yet: metrics.jsonl has no test"),
    ],
)
def test_a_folder_without_results_is_one_line(tmp_path, spoil, message):
    path = folder(tmp_path / "a", resolved(), [0.5])
    spoil(path)
    with pytest.raises(LabelSkewError) as error:
        finished.read(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_no_such_folder(tmp_path):
    assert finished.read_all([tmp_path / "nope"]) == ([], [f"{tmp_path / 'nope'}: no such folder"])
