"""ImageNet weights from files: used and skipped tensors, and errors for missing or wrong files."""

import pickle

import error_messages
import pytest
import torch
from fl_labelskew_registry import LabelSkewError
from safetensors.torch import save_file
from torchvision import models
from torchvision.models import efficientnet_b0

from fl_labelskew_plugins.models.efficientnet import EfficientNetB0
from fl_labelskew_plugins.models.pretrained import load_imagenet
from fl_labelskew_plugins.models.resnet import ResNet18
from fl_labelskew_plugins.models.vgg import VGG11
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.network_file import portable

CACHED = "checkpoints/efficientnet_b0_rwightman-7f5810bc.pth"


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """An empty cache of torchvision's."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def imagenet():
    """A state dict as torchvision's own file holds it: 1000 classes, no counters of batch normalisation."""
    torch.manual_seed(5)
    state = efficientnet_b0().state_dict()
    return {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}


def build(**params):
    torch.manual_seed(6)
    return EfficientNetB0(EfficientNetB0.Params(**params)).build((3, 32, 32), 8)


@pytest.mark.parametrize("place", ["weights.pth", "weights.safetensors", CACHED])
def test_weights_are_read_and_the_classifier_is_new(tmp_path, hub, imagenet, capsys, place):
    path = tmp_path / place
    if place == CACHED:
        path = hub / place
        path.parent.mkdir(parents=True)
    save_file(imagenet, path) if path.suffix == ".safetensors" else torch.save(imagenet, path)
    net = build() if place == CACHED else build(weights=str(path))
    for key, value in imagenet.items():
        if key.startswith("features."):
            assert torch.equal(net.body[0].state_dict()[key.removeprefix("features.")], value), key
    assert net.classifier.weight.shape == (8, 1280)
    assert capsys.readouterr() == ("", "")


def test_without_a_file_training_starts_from_scratch_with_one_warning(hub, capsys, monkeypatch):
    net = build()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"warning: model efficientnet_b0: no ImageNet weights in {hub / CACHED}; training from scr")
    again = build(weights="none")
    assert capsys.readouterr() == ("", "")
    assert torch.equal(net.body[0][0][0].weight, again.body[0][0][0].weight)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    build()
    assert capsys.readouterr() == ("", "")


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pth", None, "does not exist; use a file with ImageNet weights"),
        ("evil.pth", pickle.dumps(Evil()), "is not a valid weights file"),
        ("text.safetensors", b"hello", "is not a valid weights file"),
    ],
)
def test_broken_files_are_one_line(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    text = error_messages.message(lambda: build(weights=str(path)))
    assert text.startswith(f"{path}: {message}")
    assert len(text) < len(str(path)) + 300
    assert "this must not run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([torch.zeros(2)], "is not a state dict; use a state dict of tensors"),
        ({"model": {"a": torch.zeros(2)}}, "is not a state dict"),
        ({"0.weight": torch.zeros(3, 2)}, r"0.bias is missing, unknown or of another shape \(1 such tensors in all\)"),
        ({"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(3)}, "0.weight is missing"),
        ({"0.weight": torch.zeros(3, 2), "0.bias": torch.zeros(3), "extra": torch.zeros(1)}, "extra is missing"),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, state, message):
    torch.save(state, tmp_path / "other.pth")
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4))
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(LabelSkewError, match=message):
        load_imagenet(net, str(tmp_path / "other.pth"), name="net", cached="net.pth", head="1.")
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize(
    ("network", "params", "name"),
    [(ResNet18, {}, "resnet18"), (VGG11, {"batch_norm": True}, "vgg11_bn")],
)
def test_networks_of_torchvision_begin_with_its_weights(tmp_path, network, params, name):
    torch.manual_seed(7)
    theirs = models.get_model(name).eval()
    path = tmp_path / "weights.pth"
    torch.save(theirs.state_dict(), path)
    x = torch.randn(2, 3, 32, 32)
    net = network(network.Params(**params, weights=str(path))).build((3, 32, 32), 8).eval()
    theirs.classifier = theirs.fc = torch.nn.Identity()
    if name != "resnet18":
        theirs.avgpool = torch.nn.AdaptiveAvgPool2d(1)
    with torch.no_grad():
        torch.testing.assert_close(net.features(x), theirs(x))
    assert net.classifier.weight.shape == (8, net.features(x).shape[1])
    again = network(network.Params(**params, weights=str(path)).model_copy(update=network.trained_params))
    assert again.build((3, 32, 32), 8).state_dict().keys() == net.state_dict().keys()


def recipe(folder, **keys):
    text = f"data_args: {{dataset: digits}}\nmethod_args: {{method: fedavg}}\nmodel_args: {keys}\n"
    return parse.parse(text.replace("'", ""), source=folder / "r.yaml")


def test_the_path_is_relative_to_the_recipe_and_the_digest_is_compared(tmp_path):
    resolved = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.pth").write_bytes(name.encode())
        made = recipe(tmp_path / name, model="resnet18", weights="w.pth")
        assert made.resolved()["model_args"]["weights"] == str(tmp_path / name / "w.pth")
        assert made.network.params.stem == "imagenet"
        resolved.append(portable(made)["model_args"])
    assert resolved[0].pop("weights_sha256") != resolved[1].pop("weights_sha256")
    assert resolved[0] == resolved[1]
    assert str(tmp_path) not in str(resolved)
    assert portable(recipe(tmp_path, model="efficientnet_b0"))["model_args"]["weights"] == "auto"
    before = portable(made)["model_args"]
    (tmp_path / "b" / "w.pth").write_bytes(b"replaced")
    assert portable(made)["model_args"] != before


def test_digests_of_networks_without_weights_equal_version_0_2(tmp_path):
    for name, params in (("resnet18", {}), ("resnet50", {}), ("vgg11", {"batch_norm": False})):
        assert portable(recipe(tmp_path, model=name))["model_args"] == {"model": name} | params


def test_weights_need_torchvisions_stem_and_three_channels(tmp_path):
    with pytest.raises(LabelSkewError, match=r"weights can only be used with stem: imagenet; set that, or omit"):
        recipe(tmp_path, model="resnet18", weights="w.pth", stem="small")
    with pytest.raises(LabelSkewError, match=r"stem: imagenet needs images of 3 channels, this data set has 1; use"):
        ResNet18(ResNet18.Params(weights="w.pth")).build((1, 32, 32), 8)
