"""Run folders of strangers: commands that read them show one line for a damaged file, and no markup of theirs."""

import json
import os
import shutil

import numpy as np
import pytest
from commands import call, errors
from error_messages import message
from safetensors import safe_open
from safetensors.torch import save_file

import fl_labelskew_plugins as fl

DEEP, LONG = '{"a": ' * 100_000, '{"round": ' + "9" * 5000 + "}"
"""JSON that Python's reader refuses with RecursionError, and with ValueError."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of one round."""
    folder = tmp_path_factory.mktemp("run")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).normal(size=(60, 4)), y=np.arange(60) % 3)
    recipe = {
        "data_args": {"dataset": "npz", "data_cache_dir": str(folder / "data.npz")},
        "model_args": {"model": "logistic"},
        "train_args": {"comm_round": 1, "client_num_in_total": 2},
        "method_args": {"method": "fedavg"},
    }
    return fl.run(recipe, folder / "run", quiet=True, host="none").folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that folder, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


DAMAGED = "is damaged: unexpected content; use the folder as the run has written it"
READ = ["metrics.jsonl", "timings.jsonl", "environment.json", "summary.json", "partition.json", "status.json"]


@pytest.mark.parametrize(
    ("name", "text"), [*((name, DEEP) for name in READ), (READ[0], LONG)], ids=[*READ, "long number"]
)
def test_report_and_status_of_damaged_files(run, name, text):
    (run / name).write_text(text)
    if name == "metrics.jsonl":
        assert errors("report", run)[-1].startswith(f"{run}: no results yet: metrics.jsonl has no test")
    elif name in ("environment.json", "summary.json"):
        assert errors("report", run)[-1] == f"{run / name}: {DAMAGED}"
    else:
        call("report", run, "--html", run / "page.html")
    call("status", run, code=2 if name == "status.json" else 0)


@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl", "timings.jsonl"])
@pytest.mark.parametrize("text", ['{"round": [0]}\n', "[]\n", DEEP], ids=["of another type", "a list", "deep"])
def test_resume_of_damaged_files(run, name, text):
    (run / name).write_text(text)
    words = ["run", "--resume", run, "--host", "none", "--set", "train_args.comm_round=2", "--dry-run"]
    if name == "environment.json" or text.startswith('{"round": [0]}'):
        assert errors(*words) == [f"{run / name}: {DAMAGED}"]
    else:  # lines of rounds from a damaged one on count as missing
        call(*words)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"round": float("inf")}, "latest.safetensors, from which the run would continue, is missing or damaged; use"),
        ({"seconds": ["a"]}, "is not a checkpoint of a run: float() argument must be a string or a real number"),
        ({"x\x1b[2K\x1b[E": 1}, "is not a checkpoint of a run: "),
        (None, "classifier.weight is (1, 3, 4) torch.float32, expected (3, 4) torch.float32"),
    ],
)
def test_resume_of_a_changed_checkpoint(run, change, line):
    file = run / "checkpoint" / "latest.safetensors"
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        meta = json.loads(opened.metadata()["labelskew"])
    if change is None:
        tensors["model/classifier.weight"] = tensors["model/classifier.weight"][None]
    save_file(tensors, file, {"labelskew": json.dumps(meta | (change or {}))})
    (error,) = errors("run", "--resume", run, "--host", "none", "--set", "train_args.comm_round=2")
    assert line in error
    assert "\x1b" not in error


@pytest.mark.parametrize("text", ['"accuracy": "x"', '"recall": [0.5, "x"]'])
def test_resume_of_measures_that_are_text(run, finished, text):
    (run / "metrics.jsonl").write_text(f'{{"round": 0, {text}}}\n')
    assert errors("run", "--resume", run, "--host", "none") == [f"{run / 'metrics.jsonl'}: {DAMAGED}"]
    (run / "environment.json").write_text(DEEP)
    assert errors("evaluate", run, finished.parent / "data.npz") == [f"{run / 'environment.json'}: {DAMAGED}"]


def test_page_escapes_markup_of_a_stranger(run):
    """Names of classes and of the folder become text of the page; integers that are no floats are no error."""
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    (run / "metrics.jsonl").write_text(json.dumps(line | {"bytes_up": 10**400, "recall": [10**400] * 3}) + "\n")
    markup = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(environment | {"class_names": [markup] * 3}))
    named = run.rename(run.with_name("<script>alert(3)<"))
    call("report", named, "--html", run.parent / "page.html")
    page = (run.parent / "page.html").read_text()
    assert "<img src=x" not in page
    assert "<script>alert" not in page


IRREGULAR = "is a FIFO or device, not a regular file"
RESUME = ["--host", "none", "--set", "train_args.comm_round=2"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("status.json", ["status", "{}"]),
        (".lock", ["run", "--resume", "{}", *RESUME]),
        ("metrics.jsonl", ["status", "{}"]),
        ("metrics.jsonl", ["report", "{}"]),
        ("summary.json", ["report", "{}"]),
        ("environment.json", ["run", "--resume", "{}", *RESUME]),
        ("timings.jsonl", ["run", "--resume", "{}", *RESUME]),
        ("recipe.yaml", ["run", "--resume", "{}", *RESUME]),
        ("recipe.yaml", ["validate", "{}/recipe.yaml"]),
        ("checkpoint/latest.safetensors", ["run", "--resume", "{}", *RESUME]),
        ("checkpoint/clients/0.safetensors", ["run", "--resume", "{}", *RESUME]),
        ("model.safetensors", ["evaluate", "{}/model.safetensors", "{}/../data.npz"]),
    ],
)
@pytest.mark.timeout(60)
def test_commands_do_not_wait_for_a_fifo(run, name, words):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    (line,) = errors(*(word.format(run) for word in words))
    assert str(run) in line
    assert IRREGULAR in line or (name, words[0]) == ("recipe.yaml", "run")  # which has no recipe then


@pytest.mark.parametrize(
    ("name", "plant", "says"),
    [
        ("metrics.jsonl", os.symlink, "it is a link, FIFO or socket, not a regular file; remove it; "),
        ("metrics.jsonl", lambda _, file: os.mkfifo(file), "it is a link, FIFO or socket, not a regular file; remove"),
        ("summary.json.part", lambda _, file: os.mkdir(file), "Is a directory; remove it; to resume: "),
    ],
    ids=["link", "FIFO", "folder"],
)
@pytest.mark.timeout(60)
def test_a_run_in_whose_folder_a_link_or_fifo_appears(run, name, plant, says):
    (run.parent / "outside").write_text("secret")

    class Plant(fl.Callback):
        def on_round(self, _, line):
            (run / name).unlink(missing_ok=True)
            plant(run.parent / "outside", run / name)

    line = message(lambda: fl.load_run(run).resume(comm_round=3, quiet=True, callbacks=[Plant()]))
    assert line.startswith((f"{run / name} cannot be used: {says}", f"{run / name}: cannot be used: {says}"))
    assert (run.parent / "outside").read_text() == "secret"
