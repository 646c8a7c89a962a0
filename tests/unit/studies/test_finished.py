import pytest
from error_messages import message
from run_folders import folder, resolved

from fl_labelskew_plugins.studies import finished


def test_a_folder_of_run_folders_means_all_its_runs(tmp_path):
    a = folder(tmp_path / "a", resolved(0), [0.5])
    (tmp_path / "deep").mkdir()
    b = folder(tmp_path / "deep" / "b", resolved(1), [0.5])
    folder(b / "silo-1", resolved(2), [0.5])  # belongs to the run
    assert finished.folders([tmp_path]) == [a, b]
    assert finished.folders([b, tmp_path]) == [b, a]
    assert [len(group) for group in finished.grouped(finished.read_all([tmp_path])[0])] == [2]


def test_sums_are_another_experiment_but_addresses_are_not():
    clear, sums = {"secure_aggregation": False, "secure_bits": 16}, {"secure_aggregation": True, "secure_bits": 16}
    one, *others = (
        finished.flat({**resolved(), "comm_args": comm})
        for comm in ({"backend": "sp"}, {"backend": "MPI"}, clear, sums, {**sums, "secure_bits": 32})
    )
    assert [one == other for other in others] == [True, True, False, False]
    assert others[2] != others[3]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("metrics.jsonl", None, "not a run folder: metrics.jsonl is missing"),
        ("metrics.jsonl", b'{"round": 0}\n', "no results yet: metrics.jsonl has no test"),
        *[
            ("metrics.jsonl", line, "damaged: metrics.jsonl has a test without round and accuracy")
            for line in (b'{"round": "<b>", "accuracy": 1}\n', b'{"round": 0, "accuracy": NaN}\n')
        ],
        ("metrics.jsonl", b"\xff\xfe\x00", "no results yet: metrics.jsonl has no test"),
        ("recipe.yaml", None, "not a run folder: recipe.yaml is missing"),
        ("recipe.yaml", b"[1]", "is damaged: it contains no recipe"),
        ("recipe.yaml", b"a: [", "is damaged: line 1, column 5"),
    ],
)
def test_a_folder_without_results_is_one_line(tmp_path, name, content, says):
    path = folder(tmp_path / "a", resolved(), [0.5])
    (path / name).unlink() if content is None else (path / name).write_bytes(content)
    assert message(lambda: finished.read(path)).startswith((f"{path}: {says}", f"{path / name}: {says}"))
