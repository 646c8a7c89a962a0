import json
import os
import re
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from error_messages import message
from recipe_texts import DIGITS, only_line, text_with

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.network_file import portable

NET = """\
import os
from torch import nn

RAN = os.environ.get("NETWORK_RAN")
if RAN:
    open(RAN, "a").write(f"{os.getpid()} ")


def make_network(input_shape, num_classes, width: int = 8, depth=None, *, activation=nn.ReLU, shares=(1, 2)):
    assert activation is nn.ReLU and shares in ((1, 2), [3, 4])
    size = input_shape[0] * input_shape[1] * input_shape[2]
    layers = [nn.Flatten(), nn.Linear(size, width), activation(), nn.Linear(width, num_classes)]
    return nn.Sequential(*layers)


def needs(input_shape, num_classes, width: int | float):
    raise KeyError("nothing here")


def number(input_shape, num_classes):
    return 3


def narrow(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))


def plain(input_shape):
    return None


def asks(input_shape, num_classes):
    raise SystemExit(1)
"""


@pytest.fixture
def folder(here):
    (here / "net.py").write_text(NET)
    (here / "broken.py").write_text("def make(a, b:\n")
    (here / "lacks.py").write_text("import nosuch_module\n\n\ndef make(a, b):\n    pass\n")
    return here


def network(model="net.py:make_network", **keys):
    return parse.parse(text_with(model_args={"model": model, **keys}), source="r.yaml").network


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"model": "net.py"}, "net.py: expected FILE.py:FUNCTION"),
        ({"model": "nt.py:make"}, "nt.py: cannot be read: No such file or directory"),
        ({"model": "broken.py:make"}, "broken.py: is not valid Python: line 1: "),
        ({"model": "net.py:make_networ"}, "did you mean make_network?"),
        ({"model": "net.py:nn"}, "net.py: function 'nn' is unknown; allowed: make_network, needs, "),
        ({"model": "net.py:plain"}, "net.py:plain: takes (input_shape); use (input_shape, num_classes, ...)"),
        ({"model": "my_package.nets:make"}, "my_package.nets:make: expected FILE.py:FUNCTION"),
        ({"model": "net.py:make_network", "widht": 3}, "model_args.widht: unknown key; allowed: model, width, depth"),
        ({"model": "net.py:make_network", "width": "ten"}, "'ten' is of the wrong type; allowed: an integer"),
        ({"model": "net.py:needs"}, "r.yaml: model_args.width: missing; allowed: an integer, or a number"),
    ],
)
def test_wrong_names_and_keys_are_one_line_and_nothing_runs(folder, monkeypatch, keys, line):
    monkeypatch.setenv("NETWORK_RAN", str(folder / "ran"))
    assert line in only_line(text_with(model_args=keys))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"model": "net.py:needs", "width": 1}, "net.py:needs: KeyError: 'nothing here' (line 17)"),
        ({"model": "net.py:number"}, "net.py:number returned int; use a function that returns a torch.nn.Module"),
        ({"model": "net.py:narrow"}, "1 of Sequential has 7 outputs, but the data have 10 classes"),
        ({"model": "net.py:asks"}, "net.py:asks: SystemExit: 1 (line 33)"),
        ({"model": "lacks.py:make"}, "lacks.py:make: ModuleNotFoundError: No module named 'nosuch_module' (line 1)"),
    ],
)
def test_errors_of_a_function_are_one_line(folder, keys, line):
    assert line in message(lambda: network(**keys).build((1, 8, 8), 10))


def test_parameters_are_passed_and_defaults_are_kept(folder):
    built = network(width=5, shares=[3, 4]).build((1, 8, 8), 10)
    assert built.classifier.in_features == 5
    assert built.features(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    resolved = parse.parse(text_with(model_args={"model": "net.py:make_network"}), source="r.yaml").resolved()
    expected = {"width": 8, "depth": None, "activation": None, "shares": [1, 2]}
    assert resolved["model_args"] == {"model": f"{folder / 'net.py'}:make_network", **expected}


def test_the_weights_do_not_depend_on_whether_the_file_ran_before(folder):
    (folder / "net.py").write_text(NET + "\n\nimport torch\n\ntorch.rand(3)\n")
    first, second = (torch.manual_seed(1) and network().build((1, 8, 8), 10).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_path_is_relative_to_the_recipe_and_an_override_to_the_working_folder(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "net.py").write_text(NET.replace("width: int = 8", "width: int = 4"))
    text = text_with(model_args={"model": "net.py:make_network"})
    there = parse.parse(text, source=folder / "sub" / "r.yaml")
    here = parse.parse(text, source=folder / "sub" / "r.yaml", overrides=["model_args.model=net.py:make_network"])
    assert [recipe.network.params.model_dump(by_alias=True)["width"] for recipe in (there, here)] == [4, 8]
    assert portable(there)["model_args"]["model_sha256"] != portable(here)["model_args"]["model_sha256"]
    assert str(folder) not in json.dumps(portable(here)["model_args"])


def test_resume_rejects_changed_network_file(folder):
    recipe = DIGITS | {"model_args": {"model": "net.py:make_network", "width": 6}}
    whole = fl.run(recipe, folder / "whole", quiet=True, host="none")
    stop = SimpleNamespace(on_round=Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fl.run(recipe, folder / "cut", quiet=True, host="none", callbacks=[stop])
    (folder / "net.py").write_text(NET + "# another one\n")
    match = r"model_args.model: .*net.py has SHA-256 \w{16}..., but the run began with"
    assert re.search(match, message(lambda: fl.load_run(folder / "cut").resume(quiet=True)))
    (folder / "net.py").write_text(NET)
    again = fl.load_run(folder / "cut").resume(quiet=True)
    assert (again.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
    assert (again.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    assert type(whole.model).__name__ == "Sequential"
    environment = json.loads((whole.folder / "environment.json").read_text())
    assert environment["network_files"]["model"]["file"] == str(folder / "net.py")
    assert str(folder) not in (whole.folder / "MODEL_CARD.md").read_text()


def test_a_model_file_cannot_choose_code(folder, monkeypatch):
    run = fl.run(DIGITS | {"model_args": {"model": "net.py:make_network"}}, "run", quiet=True, host="none")
    for name in [name for name in sys.modules if "labelskew_network_" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("NETWORK_RAN", str(folder / "ran"))
    match = r"its network is net.py:make_network \(SHA-256 \w{64}\), .*; use --network"
    assert re.search(match, message(lambda: fl.load_run("run").model))
    (folder / "other.py").write_text(NET + "# another one\n")
    line = message(lambda: fl.load_run("run", model="other.py:make_network").model)
    assert re.search(r"other.py:make_network has SHA-256 .*, but .* needs net.py:make_network", line)
    assert not (folder / "ran").exists()
    x = torch.zeros(3, 1, 8, 8)
    assert fl.load_run("run", model="net.py:make_network").predict(x).equals(run.predict(x))
    assert (folder / "ran").read_text() == f"{os.getpid()} "
