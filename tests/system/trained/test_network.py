"""Models from files: valid ones, unusual ones, and malicious ones."""

import json

import numpy as np
import pytest
import torch
from error_messages import message
from fl_labelskew_registry import LabelSkewError
from safetensors.torch import load_file, save_file

from fl_labelskew_plugins.data import files
from fl_labelskew_plugins.models.efficientnet import EfficientNetB0
from fl_labelskew_plugins.runs import model_file
from fl_labelskew_plugins.trained import network
from fl_labelskew_plugins.trained.network import build, file_of, load


def test_a_model_file_contains_the_network_of_its_run(pictures, tmp_path):
    _, run = pictures
    file = tmp_path / "alone.safetensors"
    file.write_bytes((run.folder / "model.safetensors").read_bytes())
    before = torch.get_rng_state()
    trained = load(file)
    assert torch.equal(before, torch.get_rng_state())
    assert not trained.network.training
    expected = run.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in trained.network.state_dict().items())
    about = trained.about
    assert (about.network, about.input_shape, about.dtype) == ("lenet", [3, 16, 16], "uint8")
    assert about.class_names == ["circle", "cross", "square", "star"]
    assert (about.dataset, about.picture) == ("image_folder", {"image_size": 16, "channels": 3})
    assert (about.method, about.round, about.client) == ("map", 4, None)
    own = load(run.folder / "clients" / "client000002.safetensors").about
    assert (own.client, own.client_name, own.round) == (2, "2", 4)


def rewritten(run, file, **changes):
    """The run's model in another file, which says other things of it."""
    weights = load_file(run.folder / "model.safetensors")
    said = model_file.read_metadata(run.folder / "model.safetensors").model_dump() | changes
    save_file(weights, file, {model_file.KEY: json.dumps(said)})
    return file


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"network": "lenot"}, "needs the model 'lenot', which is not installed; install its package"),
        ({"network": "a\x1b[31m"}, "needs the model 'a?[31m', which"),
        ({"network_params": {"hidden": [3]}}, "model lenet: hidden: unknown key; allowed: features, relu_features"),
        ({"network_params": {"features": 3, "relu_features": True}}, "weights do not fit the network: "),
        ({"network": "mlp", "network_params": {"hidden": [10**9] * 3}}, "weights do not fit the network: "),
        # of the last two layers even the shapes are refused, and the first one has 300 GB
        ({"network": "mlp", "network_params": {"hidden": [10**8, 2**40, 2**40]}}, "the file has far fewer numbers"),
        ({"network": "mlp", "network_params": {"hidden": [1] * 10**5}}, "the file has far fewer numbers than the net"),
        ({"network": "char_lstm", "network_params": {"layers": 10**6}, "input_shape": [3]}, "the file has far fewer"),
        ({"network": "mlp", "network_params": {"hidden": [10**30]}}, "its network cannot be built: "),
        ({"network": "lenet", "input_shape": [3, 2, 2]}, "model lenet: needs images of at least"),
        ({"network": None, "module": "Net, 7 parameters"}, "was an object (Net, 7 parameters); use fl.load_run(RUN"),
    ],
)
def test_foreign_model_files_are_refused_without_allocation(pictures, tmp_path, changes, says):
    file = rewritten(pictures[1], tmp_path / "x.safetensors", **changes)
    line = message(lambda: load(file))
    assert says in line
    assert "\x1b" not in line


def test_samples_of_different_shapes_are_predicted_one_by_one(pictures, monkeypatch):
    """Layers of a stranger's network may take far more than its samples."""
    trained = load(pictures[1].folder / "model.safetensors")
    x = np.random.default_rng(0).integers(0, 256, (3, 3, 16, 16)).astype(np.uint8)
    expected, taken = trained.logits(x), []
    monkeypatch.setattr(network, "SMALL", 0)
    trained.network.register_forward_hook(lambda _, given, made: taken.append(len(given[0])))
    first = 6 * 12 * 12 * 4  # bytes of the first convolution's output for a sample of 3 x 16 x 16
    monkeypatch.setattr(network, "free_memory", lambda: 3.5 * (first + 3 * 16 * 16 * 4))
    monkeypatch.setattr(files, "free_memory", network.free_memory)
    torch.testing.assert_close(trained.logits(x), expected)
    assert taken[-3:] == [1, 1, 1]
    monkeypatch.setattr(files, "free_memory", lambda: 3 * first)
    line = message(lambda: trained.logits(x))
    assert "model.safetensors: the layers of its network need 0.0 GB, but 0.0 GB are free; use a machine with" in line


def test_a_file_without_normalisation_names_the_source(pictures, tmp_path):
    file = rewritten(pictures[1], tmp_path / "x.safetensors", mean=None, std=None)
    line = message(load(file).whole)
    assert line.endswith("use the model.safetensors of a silo, which has the normalisation of the silo's samples")


def test_a_trained_network_needs_no_pretrained_weights(tmp_path):
    params = EfficientNetB0.Params(weights=str(tmp_path / "gone.pth"))
    start = EfficientNetB0(EfficientNetB0.Params(weights="none"))
    weights = start.build((3, 32, 32), 4).state_dict()
    built = build(EfficientNetB0(params), (3, 32, 32), 4, weights, "x").state_dict()
    assert all(torch.equal(value, built[name]) for name, value in weights.items())


def test_choice_of_the_model_file(pictures, arrays, tmp_path):
    run = pictures[1].folder
    assert file_of(run) == run / "model.safetensors"
    assert file_of(run, best=True) == run / "best.safetensors"
    assert file_of(run, client="3") == run / "clients" / "client000003.safetensors"
    assert file_of(run / "best.safetensors") == run / "best.safetensors"
    begun, more_rounds = tmp_path / "begun", tmp_path / "more"
    for folder in (begun, more_rounds / "after-2-rounds"):  # kept by a run that was resumed for more rounds
        folder.mkdir(parents=True)
    for file in ("begun/recipe.yaml", "more/recipe.yaml", "more/after-2-rounds/model.safetensors"):
        (tmp_path / file).touch()
    for path, more, says in (
        (run, {"client": "9"}, "--client 9: .* has no model of that client; use 0, 1, 2, 3$"),
        (run, {"best": True, "client": "1"}, "--best selects the global model, --client a client's own; use one"),
        (arrays[1].folder, {"client": "north"}, "use no --client; methods such as map or fedphp keep one"),
        (tmp_path / "nothing", {}, "does not exist; use the folder of a run, or"),
        (tmp_path, {}, "has no model.safetensors, which exists only in the folder of a run"),
        (begun, {}, "is written after the last round$"),
        (more_rounds, {}, "is written after the last round$"),
        (begun, {"best": True}, "has no best.safetensors; use tracking_args.keep_best: true and"),
        (run / "best.safetensors", {"best": True}, "--best: .* is a single model; use the run's folder with it"),
    ):
        with pytest.raises(LabelSkewError, match=says):
            file_of(path, **more)


def test_the_name_of_a_client_takes_precedence_over_its_number(pictures, tmp_path):
    (tmp_path / "clients").mkdir()
    for number, name in enumerate(("1", "north")):
        file = tmp_path / "clients" / f"client{number:06d}.safetensors"
        rewritten(pictures[1], file, client=number, client_name=name)
    assert file_of(tmp_path, client="north").name == "client000001.safetensors"
    assert file_of(tmp_path, client="1").name == "client000000.safetensors"
    assert file_of(tmp_path, client="0").name == "client000000.safetensors"
