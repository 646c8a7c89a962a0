"""The best round's model, also after going on and going back; and the card of a run."""

import csv
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from fl_labelskew_registry import RunError
from recipe_texts import DIGITS
from safetensors.torch import load_file

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.data.npz import Npz
from fl_labelskew_plugins.runs import model_file, session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.show import card

RECIPE = DIGITS | {
    "model_args": {"model": "mlp", "hidden": [8]},
    "train_args": {"client_num_in_total": 5, "client_num_per_round": 2, "comm_round": 7, "learning_rate": 0.2},
    "tracking_args": {"checkpoint_every": 2, "keep_checkpoints": 3},
}
"""Two of five clients a round: the accuracy goes up and down."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run to its end; the weights and the accuracy of each of its rounds."""
    loop = fl.simulate(RECIPE, tmp_path_factory.mktemp("whole") / "run")
    rounds = [(line["accuracy"], loop.model.state_dict()) for line in loop]
    return loop.run, rounds


def is_best_of(folder, rounds, number):
    """Whether a folder's best model is that of the best among the first rounds, and says so."""
    best = max(range(number), key=lambda r: rounds[r][0])
    saved = load_file(folder / "best.safetensors")
    assert model_file.read_metadata(folder / "best.safetensors").round == best + 1
    assert all(torch.equal(value, saved[name]) for name, value in rounds[best][1].items())
    return best + 1


def test_the_best_rounds_model_is_kept(whole):
    run, rounds = whole
    accuracies = [accuracy for accuracy, _ in rounds]
    assert accuracies != sorted(accuracies)  # or the last one would do
    assert is_best_of(run.folder, rounds, 7) == run.summary["rounds_to_best"]
    assert max(accuracies) == run.summary["best_accuracy"]


def test_confusion_matrix_is_that_of_the_final_model(whole):
    run, _ = whole
    head, *rows = csv.reader((run.folder / "confusion.csv").read_text().splitlines())
    assert head == ["class", *(row[0] for row in rows)] == ["class", *map(str, range(10))]
    trainer = session.build(fl.load(RECIPE)).trainer
    logits, labels = trainer.predict(weights=load_file(run.folder / "model.safetensors"))
    counted = Counter(zip(labels.tolist(), logits.argmax(1).tolist(), strict=True))
    assert [[int(n) for n in row[1:]] for row in rows] == [[counted[c, p] for p in range(10)] for c in range(10)]
    assert sum(counted[c, c] for c in range(10)) / len(labels) == pytest.approx(run.summary["final_accuracy"])


def test_results_that_a_killed_run_lacks_are_written_when_it_is_resumed(tmp_path, pictures):
    recipe = fl.load(RECIPE, {"train_args.comm_round": 1, "validation_args.per_client": True})
    run = fl.run(recipe, tmp_path / "run", quiet=True, host="none")
    summary, files = run.summary, [run.folder / name for name in ("MODEL_CARD.md", "confusion.csv", "confusion.png")]
    before = [file.read_bytes() for file in files]
    assert all(client["test_samples"] for client in summary["clients"])
    for file in (*files, run.folder / "summary.json"):
        file.unlink()
    assert run.resume(quiet=True).summary | {"seconds": 0} == summary | {"seconds": 0}
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("stop", [1, 4, 5])
def test_an_interrupted_run_keeps_the_same_best_round(whole, tmp_path, stop, monkeypatch):
    """Stop after any round, as by a kill: rounds after the last checkpoint are trained again."""
    loop = fl.simulate(RECIPE, tmp_path / "run")
    monkeypatch.setattr(loop._record, "abandon", lambda: None)
    for line in loop:
        if line["round"] + 1 == stop:
            break
    is_best_of(tmp_path / "run", whole[1], stop)
    fl.load_run(tmp_path / "run").resume(quiet=True)
    assert (tmp_path / "run/best.safetensors").read_bytes() == (whole[0].folder / "best.safetensors").read_bytes()
    assert (tmp_path / "run/MODEL_CARD.md").read_bytes() == (whole[0].folder / "MODEL_CARD.md").read_bytes()


def test_a_process_that_lost_its_run_does_not_touch_states(tmp_path):
    record = fl.simulate(RECIPE, tmp_path / "run")._record
    record.folder.hold()
    record.states.put(3, 0, {"w": torch.ones(2)})
    (state,) = record.folder.states.iterdir()
    (tmp_path / "run" / ".lock").write_text('{"pid": 7, "machine": "north"}')
    with pytest.raises(RunError, match="process 7 on north has taken over this run"):
        record.abandon()
    assert state.exists()


@pytest.mark.parametrize("back", [4, 6])
def test_go_back_keeps_only_a_best_model_of_the_remaining_rounds(whole, tmp_path, back):
    folder = RunFolder(shutil.copytree(whole[0].folder, tmp_path / "run"))
    last = is_best_of(folder.path, whole[1], 7)
    folder.go_back(back)
    aside, names = folder.path / "abandoned-1", {"MODEL_CARD.md", "confusion.csv", "model.safetensors"}
    if last > back:
        names.add("best.safetensors")
        assert model_file.read_metadata(aside / "best.safetensors").round == last
    assert {file.name for file in aside.iterdir()} & {*names, "best.safetensors"} == names
    assert folder.best.exists() == (last <= back)
    fl.load_run(folder.path).resume(quiet=True)
    assert is_best_of(folder.path, whole[1], 7) == last
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (folder.path / name).read_bytes() == (whole[0].folder / name).read_bytes()


def test_no_model_replaces_a_better_one_that_was_not_kept(whole, tmp_path):
    run, rounds = whole
    off = fl.load(RECIPE, {"tracking_args.keep_best": False})
    fl.run(off, tmp_path / "run", quiet=True, host="none")
    assert not (tmp_path / "run" / "best.safetensors").exists()
    assert "best.safetensors" not in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (run.folder / "metrics.jsonl").read_bytes()
    folder = RunFolder(tmp_path / "run")
    folder.go_back(4)
    recipe = (folder.path / "recipe.yaml").read_text()
    folder.recipe.write_text(recipe.replace("keep_best: false", "keep_best: true"))
    fl.load_run(folder.path).resume(quiet=True)
    accuracies = [accuracy for accuracy, _ in rounds]
    if max(accuracies) > max(accuracies[:4]):
        is_best_of(folder.path, rounds, 7)
    else:
        assert not folder.best.exists()


def test_the_model_card_has_the_numbers_of_the_run(whole):
    run, _ = whole
    text = (run.folder / "MODEL_CARD.md").read_text()
    assert text.startswith("# `fedavg` on `digits`\n\nA network, `mlp` with 610 parameters, for samples of shape 1 x 8")
    summary = run.summary
    assert f"| accuracy, last test | `{100 * summary['final_accuracy']:.2f} %` |" in text
    best = f"{100 * summary['best_accuracy']:.2f} % in round {summary['rounds_to_best']}"
    assert f"| best accuracy | `{best}` |" in text
    assert "With `--best` a command uses `best.safetensors`" in text
    partition = run.partition
    for name in partition:
        holders, samples = int((partition[name] > 0).sum()), int(partition[name].sum())
        assert f"| `{name}` | {samples} | {holders} | " in text
    assert "- Clients hold 2 classes of 10: the model was trained under label skew" in text
    assert "chosen on the test samples themselves (the global test set), so that number is optimistic" in text
    assert str(run.folder) not in text


def test_foreign_names_are_escaped_in_markdown(tmp_path, monkeypatch):
    names = ["<script>alert(1)</script>", "a|b`c`", "[x](http://e)\n# y"]
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((60, 4)), y=np.arange(60) % 3)
    monkeypatch.setattr(Npz, "class_names", lambda *_: names)
    data = {"dataset": "npz", "data_cache_dir": str(tmp_path)}
    recipe = RECIPE | {"data_args": data, "partition_args": {"partition_method": "iid"}}
    fl.run(fl.load(recipe, {"train_args.comm_round": 1}), tmp_path / "run", quiet=True, host="none")
    text = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    rows = [line for line in text.splitlines() if "script" in line or "a/b" in line or "http" in line]
    assert len(rows) == 6  # in two tables
    for row in rows:
        name = row.split(" | ")[0].removeprefix("| ")
        assert name in ("`<script>alert(1)</script>`", "`a/b'c'`", "`[x](http://e)?# y`")


def test_code_in_markdown_is_one_line_and_cannot_end_early():
    assert card.code("`x`\n|") == "`'x'?/`"
    assert card.code("") == "` `"
