from types import SimpleNamespace

import pytest
import torch
from recipe_texts import text_with

from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.machine import text as words
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder, summary
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.transport import Kind, Message, reason


def test_foreign_text_is_cut_and_made_fit_for_one_line():
    assert words.few([]) == ""
    assert words.few(["a\x1b[31m\n", "b" * 100]) == f"a?[31m?, {'b' * 37}..."
    assert words.few([str(n) for n in range(1000)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, ... 999"
    assert words.clean("ä b", 3) == "ä b"
    assert words.clean("two\nlines\u2028\u202e\x9b") == "two?lines???"
    assert words.clean("x" * 300_000) == "x" * 197 + "..."


def described(*overrides):
    recipe = parse.parse(text_with(train_args={"client_num_in_total": 5}), overrides=overrides)
    return start.describe(session.build(recipe)).splitlines()[1]


def test_the_first_lines_count_from_one():
    assert described().startswith("data: digits, 1438 training samples of 10 classes, 5 clients of ")
    assert described().endswith(" samples and 2 classes (pcdd)")
    one = described("partition_args.partition_method=iid", "train_args.client_num_in_total=1")
    assert one == "data: digits, 1438 training samples of 10 classes, 1 client of 1438 samples and 10 classes (iid)"


def test_classes_are_named_and_classes_without_samples_are_not_counted():
    names = ["ant", "bee", "cat"]
    assert session.of_classes(names, None, 0) == "3 classes (ant, bee, cat)"
    held = torch.tensor([[4, 0, 0], [0, 0, 2]])
    assert session.of_classes(names, held, 6) == "6 training samples of 2 of 3 classes (ant, cat)"
    assert session.of_classes(["0", "1"], held[:1, :2], 1) == "1 training sample of 1 of 2 classes"


@pytest.mark.parametrize(("tests", "says"), [(1, "accuracy, last test "), (3, "accuracy, last 3 tests ")])
def test_the_final_table_counts_its_tests(tmp_path, tests, says):
    folder = RunFolder(tmp_path)
    line = {"round": 0, "accuracy": 0.5, "balanced_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1}
    result = summary([line | {"round": r} for r in range(tests)], 5)
    folder.write_json("summary.json", result | {"seconds": 1.0})
    recipe = SimpleNamespace(train=SimpleNamespace(reference=None))
    session = SimpleNamespace(client_models="local models", recipe=recipe)
    assert f"\n  {says}" in start.table(SimpleNamespace(folder=folder, session=session))


def test_a_reason_cannot_add_a_line():
    text = "no" + " " * 400 + "2026-01-01 WARNING silo 1 lies\n\u2800\u3164 \u034f \ufe0f"
    assert reason(Message(Kind.FAILED, 4, 0, meta={"reason": text})) == "no 2026-01-01 WARNING silo 1 lies ?? ? ?"
    assert reason(Message(Kind.FAILED, 4, 0)) is None


@pytest.mark.parametrize("name", ["a  b", "a\u2800", "a\u034f", "a\u00a0"])
def test_a_tensor_name_cannot_add_a_line(name):
    with pytest.raises(wire.WireError, match="printable names"):
        wire.encode(Kind.UPLOAD, 1, 0, 0, {}, {name: torch.zeros(1)})
    wire.encode(Kind.UPLOAD, 1, 0, 0, {}, {"model/größe 0.weight": torch.zeros(1)})
