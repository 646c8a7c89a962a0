"""Models for other programs: the same logits of raw samples, of every network that is installed."""

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from commands import call
from error_messages import message
from fl_labelskew_registry import RunError, catalog
from torch import nn
from torchvision.models import efficientnet
from torchvision.models.efficientnet import MBConvConfig

from fl_labelskew_plugins.runs.model_file import KEY
from fl_labelskew_plugins.trained import export
from fl_labelskew_plugins.trained.network import Trained, load

FORMATS = ("onnx", "pt2")
NETWORKS = [entry.name for entry in catalog.entries("models") if entry.name not in ("resnet18", "resnet50")]
"""All but two large ones, which have the layers of wide_resnet."""


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_gives_the_same_logits(pictures, tmp_path, name, monkeypatch):
    # EfficientNet-b0 with 4 instead of 16 blocks: the others repeat these
    stages = [MBConvConfig(*numbers) for numbers in ((1, 3, 1, 32, 16, 1), (6, 5, 2, 16, 24, 2), (6, 3, 1, 24, 320, 1))]
    monkeypatch.setattr(efficientnet, "_efficientnet_conf", lambda *_, **__: (stages, None))
    shape = {"char_lstm": [4], "sacnn": [64]}.get(name, [1, 28, 28] if "mnist" in name else [3, 32, 32])
    text = name == "char_lstm"
    kind = catalog.load("models", name)
    params = {**kind.trained_params, **({"depth": 10, "widen": 1} if name == "wide_resnet" else {})}
    torch.manual_seed(0)
    network = kind(kind.Params(**params)).build(tuple(shape), 10).eval()
    about = load(pictures[1].folder / "model.safetensors").about.model_copy(
        update={
            "network": name, "network_params": params, "input_shape": shape, "class_names": list("abcdefghij"),
            "mean": [] if text else [0.4], "std": [] if text else [0.3],
            "dtype": "float32" if name == "mlp" else "uint8",
        }
    )  # fmt: skip
    trained = Trained(tmp_path / "x.safetensors", about, network)
    for form in FORMATS:
        assert export.export(trained, tmp_path / f"x.{form}", form) <= export.TOLERANCE
    # once more without anything of the package, the normalisation by hand
    raw = np.random.default_rng(0).integers(0, 10 if text else 256, (5, *shape)).astype(about.dtype)
    inputs = torch.from_numpy(raw)
    if not text:
        inputs = (inputs / (255 if about.dtype == "uint8" else 1) - 0.4) / 0.3
    with torch.no_grad():
        expected = network(inputs)
    atol = 1e-4 * max(1.0, float(expected.abs().max()))
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    (logits,) = session.run(None, {"samples": raw})
    np.testing.assert_allclose(logits, expected, atol=atol)
    with (tmp_path / "x.pt2").open("rb") as stream:
        program = torch.export.load(stream).module()
    torch.testing.assert_close(program(torch.from_numpy(raw)), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("form", FORMATS)
def test_the_command_prints_inputs_of_the_file_without_local_paths(arrays, tmp_path, form):
    run = arrays[1].folder
    out = tmp_path / f"model.{form}"
    told = call("export", run, "--format", form, "--out", out)
    first, second, third = told.stdout.splitlines()
    assert first.startswith(f"written: {out}; logits differ by ")
    assert second == "input: samples float32 (batch, 6), not normalised"
    assert third == "output: logits float32 (batch, 3)"
    assert told.stderr == ""
    assert os.listdir(tmp_path) == [out.name]
    assert os.getcwd().encode() not in out.read_bytes()
    assert b"site-packages" not in out.read_bytes()
    if form == "onnx":
        said = {prop.key: json.loads(prop.value) for prop in onnx.load(out).metadata_props}
        assert said["class_names"] == ["0", "1", "2"]
    else:
        files = {KEY: ""}
        with out.open("rb") as stream:
            torch.export.load(stream, extra_files=files)
        said = {KEY: json.loads(files[KEY])}
    assert said[KEY] == load(run / "model.safetensors").about.model_dump()


class Moody(nn.Module):
    """Gives other logits every time."""

    def forward(self, x):
        return torch.rand_like(x.flatten(1)[:, :4])


class Stubborn(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > 0 else -x


def test_a_failed_export_leaves_no_file(pictures, tmp_path):
    about = load(pictures[1].folder / "model.safetensors").about
    for network, says in ((Moody(), "its logits differ by"), (Stubborn(), "cannot be exported as pt2: ")):
        trained = Trained(tmp_path / "x.safetensors", about, network)
        with pytest.raises(RunError, match=says):
            export.export(trained, tmp_path / "x.pt2", "pt2")
        assert os.listdir(tmp_path) == []


def test_a_missing_package_names_its_install_command(arrays, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    trained = load(arrays[1].folder / "model.safetensors")
    line = message(lambda: export.export(trained, tmp_path / "x.onnx", "onnx"))
    assert line.endswith(
        "ONNX needs onnxscript, which is not installed; to install it: pip install 'onnx>=1.15' 'onnxruntime>=1.17' "
        "'onnxscript>=0.3', or use --format pt2"
    )
