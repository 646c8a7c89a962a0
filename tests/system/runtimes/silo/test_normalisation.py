"""One mean and standard deviation for all silos: the sums that silos send, and the result that all use."""

import json
import signal

import numpy as np
import pytest
import torch
from error_messages import message
from federations import FACTS, cached_runs, finished, same
from fl_labelskew_registry import LabelSkewError, RunError
from recipe_texts import SILOS, simulation
from safetensors.torch import load_file
from wire_table import Wire
from wiretap import watched

from fl_labelskew_plugins.data import stats
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs import model_file
from fl_labelskew_plugins.runtimes.silo import facts as silos

SHAPE, SIZES = (3, 2, 2), (40, 25, 60)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A folder with the pictures of three hospitals with different scanners, separate and in one place."""
    folder, rng, parts = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(0), []
    for rank, size in enumerate(SIZES, 1):
        y = np.arange(size) % 3
        low = 30 * rank + 20 * y[:, None, None, None]
        x = rng.integers(low, low + 60, (size, *SHAPE)).astype(np.uint8)
        parts.append({"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6]})
        np.savez(folder / f"silo{rank}.npz", **parts[-1])
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    np.savez(folder / "server.npz", x_test=whole["x_test"], y_test=whole["y_test"])
    groups = {
        f"groups_{part}": np.repeat([0, 1, 2], [len(p[f"y_{part}"]) for p in parts]) for part in ("train", "test")
    }
    np.savez(folder / "all.npz", **whole, **groups)
    return folder


def recipe_of(hospitals, name):
    data = f"data_args: {{dataset: npz, data_cache_dir: {hospitals}/{name}.npz, layout: nchw, classes: 3}}"
    lines = [line for line in SILOS.splitlines() if not line.startswith(("data_args", "partition_args"))]
    return "\n".join([data, *lines]) + "\n"


@pytest.fixture
def apart(make_federation, hospitals):
    """Silos of one hospital each, by their own files."""
    federation, names = make_federation("apart", recipe_of(hospitals, "server")), ("silo1", "silo2", "silo3")
    federation.give_files(**{name: recipe_of(hospitals, name).splitlines()[0] + "\n" for name in names})
    return federation


def known(folder):
    return json.loads((folder / "environment.json").read_text())["normalisation"]


def test_separate_silos_and_pooled_data_give_identical_runs(apart, hospitals, tmp_path):
    finished(server := apart.server(), *apart.silos())
    line = "mean and std of the training samples of 3 silos together: 0."
    assert line in server.text
    text = simulation(recipe_of(hospitals, "all")) + "\npartition_args: {partition_method: natural}\n"
    pooled = cached_runs(tmp_path, text)()
    whole = np.load(hospitals / "all.npz")["x_train"]
    mean, std = stats.moments(whole)
    assert known(apart.run_dir) == known(pooled) == {"mean": list(mean), "std": list(std)}
    same(load_file(pooled / "model.safetensors"), apart.weights())
    together = [line["accuracy"] for line in read_lines(pooled / "metrics.jsonl")]
    assert [line["accuracy"] for line in apart.lines()] == together
    writes_its_results_again(apart)


def writes_its_results_again(federation):
    """Resume a run without its model: the new one has the numbers of the run."""
    file = federation.run_dir / "model.safetensors"
    said = model_file.read_metadata(file)
    assert (said.dtype, said.mean) == ("uint8", known(federation.run_dir)["mean"])
    file.unlink()
    finished(federation.server(resume=True))
    assert model_file.read_metadata(file) == said


def test_float_samples_and_other_units_of_one_silo_are_reported(apart, hospitals, tmp_path):
    arrays = dict(np.load(hospitals / "silo3.npz"))
    np.savez(tmp_path / "floats.npz", **{k: np.float32(v) * 100 if k.startswith("x") else v for k, v in arrays.items()})
    own = apart.folder / "silo3.yaml"
    own.write_text(own.read_text().replace(str(hospitals / "silo3.npz"), str(tmp_path / "floats.npz")))
    apart.overrides = ["train_args.comm_round=1", "validation_args.server_test_data=false"]
    apart.overrides += ["data_args.input_shape=[3,2,2]"]
    finished(server := apart.server(), *(silos := apart.silos()))
    useless = "reports a mean or std of its samples that makes the common ones useless for the other silos; check"
    assert [f"silo {rank} {useless}" in server.text for rank in (1, 2, 3)] == [False, False, True]
    unsuitable = "the common mean and std do not suit this silo's samples: channel 0 has mean -"
    assert [unsuitable in silo.text for silo in silos] == [True, True, False]
    warning = "float samples at silo 3, uint8 samples at all others: the published model will expect floats"
    assert server.text.count(warning) == 1
    assert model_file.read_metadata(apart.run_dir / "model.safetensors").dtype == "float32"


def test_results_of_a_server_without_test_data_are_written_again(apart):
    apart.overrides = ["train_args.comm_round=1", "validation_args.server_test_data=false"]
    apart.overrides += ["data_args.input_shape=[3,2,2]"]
    finished(apart.server(), *apart.silos())
    writes_its_results_again(apart)


def test_late_silos_get_the_normalisation_of_the_run(apart, hospitals):
    apart.overrides = ["comm_args.quorum_timeout_s=3", "comm_args.min_clients=2", "train_args.comm_round=6"]
    apart.overrides += ["train_args.epochs=20", "tracking_args.checkpoint_every=1"]
    server, first = apart.server(), apart.silos(1, 2)
    server.says("silo 3 has not connected; continuing without it")
    server.says("round 1/6")
    first[0].kill(signal.SIGSTOP)  # so that the run is not over before the third has connected
    two = stats.pooled([stats.sums(np.load(hospitals / f"silo{rank}.npz")["x_train"]) for rank in (1, 2)])
    assert known(apart.run_dir) == {"mean": list(two[0]), "std": list(two[1])}
    late = apart.silo(3)
    server.says("silo 3 has connected")
    first[0].kill(signal.SIGCONT)
    late.says("trained in")
    server.kill(signal.SIGKILL)
    again = apart.server(resume=True)
    finished(again, *first, late)
    assert [apart.lines()[round]["clients"] for round in (0, -1)] == [[0, 1], [0, 1, 2]]
    assert "together" not in again.text
    assert known(apart.run_dir)["mean"] == list(two[0])


def test_a_survey_of_silos_with_data_of_their_own_makes_no_normalisation(apart):
    server, proxy = watched(apart, "--survey")
    finished(server, *(apart.silo(rank, "--survey") for rank in (1, 2, 3)))
    wire = Wire(proxy, {"C": 3, "A": 3, "d": 16}, {})
    came = {(field.message, field.name) for field in wire.seen if not isinstance(field, tuple)}
    assert [name for name in came if name[1].startswith("tensor")] == [("SURVEY", "tensor counts")]
    recipe = recipes.load(apart.recipe)
    assert recipe.pools_moments
    held = [silos.load(recipes.silo(recipe, rank), rank - 1).counts.tolist() for rank in (1, 2, 3)]
    survey = json.loads((apart.run_dir / "survey.json").read_text())
    assert [client["counts"] for client in survey["clients"]] == held


def test_a_recipe_with_numbers_asks_silos_for_nothing(apart):
    for mean, std in (("[0.5]", "[0.2]"), ("imagenet", "imagenet")):
        recipe = recipes.load(apart.recipe, [f"data_args.mean={mean}", f"data_args.std={std}"])
        silo = silos.load(recipes.silo(recipe, 2), 1)
        assert silo.sent() == {}
    assert silo.data.mean == (0.485, 0.456, 0.406)
    told = silos.load(recipes.silo(recipes.load(apart.recipe), 2), 1).sent()
    assert told.keys() == {"sum", "squares"}
    assert {(value.dtype, tuple(value.shape)) for value in told.values()} == {(torch.int64, (3,))}


def test_a_silos_file_cannot_change_the_normalisation_but_its_policy_can_refuse(apart):
    own = apart.folder / "silo2.yaml"
    plain = own.read_text()

    def said(text, *overrides):
        own.write_text(text)
        return message(lambda: recipes.silo(recipes.load(apart.recipe, overrides), 2)).removeprefix(f"{own}: ")

    other = plain.replace("classes: 3", "classes: 3, mean: [0.1], std: [0.1]")
    line = "data_args.mean: [0.1] here but 'data' in the recipe; all silos share one normalisation: set mean and std"
    assert said(other).startswith(line)
    strict = plain + "policy: {send: [weights]}\n"
    assert said(strict) == (
        'policy.send: ["weights"] does not allow moments: sums over all training samples (to avoid them, set '
        "data_args.mean and std in the server's recipe); use another recipe, or change this policy"
    )
    own.write_text(strict)
    recipes.silo(recipes.load(apart.recipe, ["data_args.mean=imagenet", "data_args.std=imagenet"]), 2)
    own.write_text(plain + "policy: {send: [weights, moments]}\n")
    recipes.silo(recipes.load(apart.recipe), 2)


def tensors(first, second, dtype=torch.int64):
    return {"sum": torch.tensor(first, dtype=dtype), "squares": torch.tensor(second, dtype=dtype)}


REPORTED = silos.facts(FACTS | {"samples": 10, "input_shape": [2, 1, 1]})


@pytest.mark.parametrize(
    "sent",
    [
        {},
        tensors([5, 5], [9, 9]) | {"more": torch.zeros(1)},
        tensors([5], [9]),
        tensors([5, 5], [9, 9], torch.float32),
        tensors([5, 5], [9, 9]) | {"sum": torch.tensor([5.0, 5.0], dtype=torch.float64)},
        tensors([5, -1], [9, 9]),
        tensors([5, 2551], [9, 65025 * 10]),  # ten values of 255 at most
        tensors([5, 50], [9, 249]),  # ten values that sum to 50 have squares of 250 at least
        tensors([5, 2], [9, 511]),  # and no value is above 255
        tensors([0.0, float("nan")], [1.0, 1.0], torch.float64),
        tensors([0.0, 0.0], [1.0, float("inf")], torch.float64),
        tensors([0.0, 0.0], [1.0, -1.0], torch.float64),
        tensors([1e300, 0.0], [1.0, 1.0], torch.float64),
    ],
)
def test_impossible_sums_are_refused(sent):
    message(lambda: silos.sums(sent, REPORTED), kind=RunError)


def test_possible_sums_are_accepted():
    """Those of floats must be sums of pixels if the server's test data are pixels."""
    sums = tensors([9.0, 1.0], [9.0, 9.0], torch.float64), tensors([11.0, 1.0], [9.0, 9.0], torch.float64)
    for sent in sums:
        silos.sums(sent, REPORTED)
    silos.sums(sums[0], REPORTED, pixels=True)
    with pytest.raises(RunError, match="impossible for 10 values"):
        silos.sums(sums[1], REPORTED, pixels=True)
    x = np.random.default_rng(0).integers(0, 256, (10, 2, 1, 1))
    for samples in (x.astype(np.uint8), np.full_like(x, 255, np.uint8), x.astype(np.float32)):
        made = stats.sums(samples)
        taken = silos.sums(tensors(made.first, made.second, torch.tensor(made.first).dtype), REPORTED)
        assert stats.pooled([taken]) == stats.pooled([made])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"mean": None}, "mean"),
        ({"mean": torch.zeros(3)}, "mean"),
        ({"mean": torch.zeros(2, dtype=torch.float64)}, "mean"),
        ({"mean": torch.tensor([0.0, float("inf"), 0.0], dtype=torch.float64)}, "mean"),
        ({"std": torch.zeros(3, dtype=torch.float64)}, "std"),
        ({"std": torch.tensor([1.0, float("nan"), 1.0], dtype=torch.float64)}, "std"),
    ],
)
def test_a_server_s_numbers_that_cannot_be_used_end_the_silo(change, key, apart):
    data = silos.load(recipes.silo(recipes.load(apart.recipe), 1), 0).data
    good = {"mean": torch.full((3,), 0.5, dtype=torch.float64), "std": torch.ones(3, dtype=torch.float64)}
    assert silos.normalised(data, good).mean == (0.5, 0.5, 0.5)
    sent = {name: value for name, value in (good | change).items() if value is not None}
    with pytest.raises(LabelSkewError, match=rf"^the server's {key} of all samples: cannot normalise samples of 3"):
        silos.normalised(data, sent)
    with pytest.raises(LabelSkewError, match=r"^the server sent other tensors with the mean and std of all samples$"):
        silos.normalised(data, good | {"model/classifier.bias": torch.zeros(3)})
