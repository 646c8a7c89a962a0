"""The example of a method from another package: it is built, installed and run, and the tutorial's code works."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from fl_labelskew_registry import Method
from recipe_texts import DIGITS
from safetensors.torch import load_file

import fl_labelskew_plugins as fl

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third_party_method"
TUTORIAL = ROOT / "docs" / "adding-a-method.md"


@pytest.fixture(scope="module")
def installed(make_venv, wheels, build, tmp_path_factory):
    """An environment with our wheels and the example's, and the folder that the example was built in."""
    folder = tmp_path_factory.mktemp("example") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    venv = make_venv()
    venv.install(*wheels, build(folder, folder / "dist"))
    venv.add_dependencies()
    return venv, folder


def test_the_third_party_method_is_listed_and_checked(installed):
    venv, folder = installed
    wrong = f"validate {folder / 'not_true_digits.yaml'} --set method_args.beta=-1"
    done = venv.labelskew("methods", "methods not_true", wrong, check=False)
    words = " ".join(done.stdout.split())
    about = "Distillation from the server's model over the classes other than the label."
    assert f" not_true {about} (labelskew-not_true) " in words
    assert " fedmr " in words
    assert f" not_true: {about} " in words
    assert "temperature" in words
    assert done.returncode == 2
    assert "method_args.beta" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_trains_as_the_built_in_method(installed):
    """The contract suffices: FedNTD from another package gives identical weights."""
    venv, folder = installed
    recipe, words = folder / "not_true_digits.yaml", ("--host", "none", "--quiet", "--set", "train_args.comm_round=2")
    venv.run("labelskew", "run", recipe, "--run-dir", folder / "not_true", *words, FL_LABELSKEW_PICTURES="no")
    built_in = fl.load(recipe, {"method_args.method": "fedntd", "train_args.comm_round": 2})
    fl.run(built_in, folder / "fedntd", host="none", quiet=True)
    one, other = (load_file(folder / name / "model.safetensors") for name in ("not_true", "fedntd"))
    assert all(torch.equal(one[key], other[key]) for key in one.keys() | other.keys())


def test_the_tutorial_s_code_runs(tmp_path):
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 9
    for block in blocks:
        exec(block, names)
    names["test_equals_a_loop"]()
    names["test_temperature_1_changes_nothing"]()
    names["test_its_hooks_return_what_runs_expect"]()
    assert issubclass(names["Tempered"], Method)
    assert issubclass(names["Centred"], Method)
    method = names["Tempered"](names["Tempered"].Params(temperature=4.0))
    assert method.calibrate(torch.tensor([[2.0, 4.0]]), None).tolist() == [[0.5, 1.0]]
    for name, term in (("Distilled", "distillation"), ("Headed", "spread")):
        run = fl.run(DIGITS, tmp_path / name, method=names[name](), quiet=True, host="none")
        assert run.metrics[f"loss_terms.{term}"].iloc[-1] > 0
    flat = fl.run(DIGITS, tmp_path / "Flat", method=names["Flat"](), quiet=True, host="none")
    plain = fl.run(DIGITS, tmp_path / "Tempered", method=names["Tempered"](), quiet=True, host="none")
    assert plain.metrics["loss"].tolist() != flat.metrics["loss"].tolist()


def test_the_tutorial_names_every_hook():
    hooks = [name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")]
    text = TUTORIAL.read_text(encoding="utf-8")
    assert len(hooks) > 10
    assert [hook for hook in hooks if f"`{hook}(" not in text] == []
