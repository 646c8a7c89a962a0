import copy
import pickle
import re
import traceback

import numpy as np
import pytest
import torch
from error_messages import message
from fl_labelskew_registry import (
    Arrays,
    Batch,
    ClientView,
    Data,
    Dataset,
    LabelSkewError,
    Method,
    Network,
    Optimizer,
    Stage,
)
from fl_labelskew_registry.testing import FEDERATION
from recipe_texts import SKEWED
from torch import nn

from fl_labelskew_plugins.checked import HookError, checked
from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.methods.fedlc import FedLC
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runtimes.options import RunOptions

LOGITS, BATCH = torch.zeros(4, 3, requires_grad=True), torch.tensor([0, 0, 1, 1])


def view():
    return ClientView(0, 0, torch.tensor([2, 6, 0]), {}, {}, torch.Generator(), 1, FEDERATION)


def batch():
    return Batch(torch.zeros(4, 1), torch.zeros(4, 5, requires_grad=True), LOGITS, BATCH)


def returns(value):
    return lambda self, *args, **more: value


def net(**parts):
    module = nn.Module()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def data(**parts):
    one = {"x": np.zeros((4, 2)), "y": np.zeros(4, np.int64)} | parts
    return Data(Arrays(**one), Arrays(np.zeros((1, 2)), np.zeros(1, np.int64)), ["a"])


def leaves(value):
    return lambda self, client: client.state.update(n=value)


CALLED_WITH = {
    "terms": (batch(), view()), "loss": (batch(), view()), "calibrate": (LOGITS, view()), "combine": ([], {}),
    "private_logits": (torch.zeros(4, 1), view()), "open": ([],), "personalised": ({},),
    "stages": (2,), "step": (None,), "build": ((1,), 3), "load": (), "contribution_shapes": (FEDERATION,),
}  # fmt: skip
"""What a run gives each hook; all others get a client's view."""
ONE, HALF, TERMS = torch.ones(()), torch.ones(3).half(), "Mapping[str, Tensor]"
NARROW, WIDE = nn.Linear(1, 3), nn.Linear(1, 4)
MISTAKES = [
    (Method, "terms", returns(None), f"returned None; expected {TERMS}"),
    (Method, "terms", returns({"a": torch.ones(2)}), "returned a tensor of shape (2,) as 'a'; expected scalars"),
    (Method, "terms", returns({"a b": ONE}), "returned a term named 'a b'; expected at most 40 letters, "),
    (Method, "loss", returns(ONE), "returned a tensor of shape (); expected dict[str, Tensor]"),
    (Method, "loss", returns({}), "returned an empty dict; expected terms, for example {'cross_entropy': "),
    (Method, "loss", returns({"a": ONE}), "returned terms without a gradient; compute them from batch.logits, "),
    (Method, "calibrate", returns(None), "returned None; expected Tensor"),
    (Method, "calibrate", returns(torch.ones(4)), "returned a tensor of shape (4,); expected shape (4, 3)"),
    (Method, "private_logits", returns(torch.ones(3)), "returned a tensor of shape (3,); expected shape (4, 3)"),
    (Method, "combine", returns({"a": np.ones(2)}), f"returned a numpy array of shape (2,) as 'a'; expected {TERMS}"),
    (Method, "open", returns({0: torch.ones(2)}), f"returned a tensor of shape (2,) as 0; expected {TERMS}"),
    (Method, "contribute", returns({"a": ONE}), "returned 'a' of shape (), but contribution_shapes announces (3,)"),
    (Method, "contribute", returns({"b": ONE}), "returned 'b' of shape (), but contribution_shapes announces None"),
    (Method, "contribute", returns({"a": HALF}), "returned 'a' as torch.float16; expected float32, float64 or int64"),
    (Method, "opening", returns({"a": ONE}), "returned 'a' of shape (), but opening_shapes announces None"),
    (Method, "before_round", leaves(3), "left an int as 'n' in client.state; expected names and tensors, "),
    (Method, "after_round", lambda self, client: setattr(client, "state", None), "left None in client.state; "),
    (Method, "personalised", returns([1]), "returned a list; expected dict[str, Tensor] | None"),
    (Method, "private_parameters", returns([ONE]), "returned a list; expected Sequence[nn.Parameter]"),
    (Method, "stages", returns([Stage("a", 1)] * 2), "returned 2 stages with upload=True; expected exactly one"),
    (Method, "stages", returns([Stage("a", 0)]), "returned stage 'a' with 0 epochs; expected more than 0"),
    (Method, "contribution_shapes", returns({"a": 3}), "returned an int as 'a'; expected Mapping[str, tuple[int, ...]"),
    (Optimizer, "step", returns(None), f"returned None; expected {TERMS}"),
    (Network, "build", returns(net(classifier=NARROW)), "returned a module without features; add features(x), "),
    (Network, "build", returns(net(features=abs, classifier=WIDE)), "returned a module with classifier Linear("),
    (Dataset, "load", returns(data(y=[0] * 4)), "returned a list as train.y; expected an array of 4 integers"),
]


def plugin(contract, **body):
    return checked(type("Mine", (contract,), {"Params": Params, "__module__": __name__, **body})())


@pytest.mark.parametrize(
    ("contract", "hook", "function", "line"), MISTAKES, ids=[f"{h}: {m}" for _, h, _, m in MISTAKES]
)
def test_a_wrong_result_names_the_hook_the_result_and_the_expectation(contract, hook, function, line):
    announced = {"contribution_shapes": returns({"a": (3,)})} if contract is Method else {}
    with pytest.raises(HookError) as error:
        getattr(plugin(contract, **announced | {hook: function}), hook)(*CALLED_WITH.get(hook, (view(),)))
    assert str(error.value).startswith(f"Mine.{hook} ({__name__}) {line}")
    assert (error.value.exit_code, error.value.frames) == (1, "")


def test_a_loss_needs_no_gradient_if_none_is_computed():
    with torch.no_grad():
        plugin(Method, loss=returns({"a": ONE})).loss(batch(), view())


def test_whether_a_hook_is_overridden_can_still_be_asked():
    mine = plugin(Method, calibrate=lambda self, logits, client: logits)
    assert (mine.uses("calibrate"), mine.uses("loss"), mine.logits_only()) == (True, False, True)
    assert checked(FedLC()).__dict__.keys() == FedLC().__dict__.keys()  # our own are called as they are


class Given(Method):
    Params = Params

    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.combine = returns({"given": torch.ones(1)}).__get__(self)


def test_a_copy_has_its_own_hooks_and_keeps_attributes():
    mine = checked(Given())
    assert mine.combine([], {}).keys() == {"given"}
    for other in (copy.deepcopy(checked(Module())), pickle.loads(pickle.dumps(checked(Module())))):
        other.scale = 3.0
        assert other.features(torch.ones(2, 4)).tolist() == [[3.0] * 4] * 2


class Module(nn.Module):
    """A network of another package: its input times ``scale``."""

    def __init__(self):
        super().__init__()
        self.scale, self.classifier = 2.0, nn.Linear(4, 3)

    def features(self, x):
        return self.scale * x

    def forward(self, x):
        return self.classifier(self.features(x))


@pytest.mark.parametrize(
    ("features", "line"),
    [
        (lambda x: x[0], "returned a tensor of shape (4,); expected shape (2, 4)"),
        (lambda x: None, "returned None; expected a tensor"),
    ],
)
def test_features_of_a_wrong_shape_are_a_one_line_error(features, line):
    module = Module()
    module.features = features
    with pytest.raises(HookError) as error:
        checked(module, of=plugin(Network)).features(torch.ones(2, 4))
    assert str(error.value) == f"Module.features ({__name__}) {line}"


def test_a_network_with_a_features_module_is_called_as_before():
    other = copy.deepcopy(checked(net(features=nn.Sequential(nn.Flatten()), classifier=nn.Linear(4, 3))))
    assert other.features(torch.ones(2, 2, 2)).shape == (2, 4)
    assert other.state_dict().keys() == {"classifier.weight", "classifier.bias"}
    assert "returned a tensor of shape" in message(lambda: other.features(torch.ones(2, 3)), kind=HookError)


def helper(values):
    raise ValueError("two\nlines" if values is None else "torch's")


class Raises(Method):
    Params = Params

    def calibrate(self, logits, client):
        return helper(None)

    def combine(self, contributions, shared):
        return torch.zeros(2).reshape(3)

    def before_round(self, client):
        client.frozen({})

    def after_round(self, client):
        raise LabelSkewError("told by the author")


def frames_of(error):
    return re.findall(r'File "(.*)", line \d+, in (\w+)\n    (.*)', error.frames)


def test_an_exception_is_one_line_with_frames_of_the_author():
    mine = checked(Raises())
    with pytest.raises(HookError) as caught:
        mine.loss(batch(), view())  # which is the contract's own, and calls calibrate
    assert str(caught.value) == f"Raises.calibrate ({__name__}) raised ValueError: two lines"
    assert frames_of(caught.value) == [
        (__file__, "calibrate", "return helper(None)"),
        (__file__, "helper", """raise ValueError("two\\nlines" if values is None else "torch's")"""),
    ]
    shown = caught.value.shown().splitlines()
    assert shown[0] == f"error: {caught.value}; traceback of its own code:"
    assert shown[1:] == caught.value.frames.splitlines()


def test_frames_of_libraries_are_left_out():
    mine = checked(Raises())
    with pytest.raises(HookError) as caught:
        mine.combine([], {})
    assert frames_of(caught.value) == [(__file__, "combine", "return torch.zeros(2).reshape(3)")]
    client = view()
    client.frozen = lambda weights: nn.Linear(1, 1).load_state_dict(weights)
    with pytest.raises(HookError, match="raised RuntimeError: Error") as caught:
        mine.before_round(client)
    assert "site-packages" not in caught.value.frames
    assert frames_of(caught.value)[0] == (__file__, "before_round", "client.frozen({})")


def test_an_error_message_of_an_author_is_kept():
    with pytest.raises(LabelSkewError, match=r"^told by the author$") as caught:
        checked(Raises()).after_round(view())
    assert type(caught.value) is LabelSkewError


def test_a_bug_of_this_package_keeps_its_traceback():
    with pytest.raises(TypeError):
        checked(FedLC()).calibrate(None, None, None)
    mine = plugin(Method)  # the contract's own loss, which no author has written
    with pytest.raises(AttributeError) as caught:
        mine.loss(None, view())
    assert any("contracts.py" in frame.filename for frame in traceback.extract_tb(caught.value.__traceback__))


HEAD = """\
import torch
from torch import nn
from fl_labelskew_registry import Method, Network, Optimizer, Stage
from fl_labelskew_plugins.params import Params as Own

class A({contract}):
    class Params(Own):
        pass

"""
NAMED = {
    "methods": ("Method", "method_args.method=acme"),
    "optimizers": ("Optimizer", "train_args.federated_optimizer=acme"),
    "models": ("Network", "model_args.model=acme"),
}


@pytest.fixture
def attempt(register, tmp_path):
    """Run a recipe with a plugin of this body; the error that it ends with, and the plugin's module."""
    path = tmp_path / "recipe.yaml"
    path.write_text(SKEWED)

    def attempt(kind, body, *overrides):
        contract, named = NAMED[kind]
        source = HEAD.format(contract=contract) + "\n".join(f"    {line}" for line in body.splitlines())
        module = register(f"fl_labelskew.{kind}", source)
        named = [named] if not any(each.startswith("method_args.method=") for each in overrides) else []
        with pytest.raises(LabelSkewError) as error:
            start.start(RunOptions(path, [*named, *overrides], run_dir=tmp_path / "run", quiet=True))
        return error.value, module

    return attempt


IN_RUNS = [
    ("methods", "def after_aggregation(self, *_): return {}", "A.after_aggregation ({}) returned a state dict without"),
    ("methods", "def protect(self, update, client): return {}", "A.protect ({}) returned an update without "),
    (
        "methods",
        "def personalised(self, state): return {'w': torch.ones(1)}\ndef after_round(self, client):\n"
        "    client.state['w'] = torch.ones(1)",
        "A.personalised ({}) returned a state dict without body.1.weight, ",
    ),
    (
        "methods",
        "def before_round(self, client): client.model.classifier = nn.Linear(8, 12)",
        "A.before_round ({}) left a network with classifier.weight of the shape (12, 8), expected (10, 8); keep "
        "names and shapes of client.model; keep a client-specific head in client.scratch and return its "
        "parameters from private_parameters",
    ),
    (
        "methods",
        "def terms(self, batch, client):\n    client.model.extra = nn.Linear(1, 1)\n    return {}",
        "A.terms ({}) left a network with extra.weight, extra.bias, which the server's model does not have; ",
    ),
    ("optimizers", "def step(self, round): return {}", "A.step ({}) returned a state dict without "),
]


def test_stages_are_checked_before_training(attempt, tmp_path):
    body = "def stages(self, epochs): return [Stage('a', epochs), Stage('b', epochs)]"
    error, module = attempt("methods", body)
    says = f"A.stages ({module}) returned 2 stages with upload=True; expected exactly one"
    assert str(error) == f"--set method_args.method: {says}"
    assert isinstance(error, parse.RecipeError)
    assert not (tmp_path / "run").exists()


NETWORK = """\
def build(self, shape, classes):
    return Net(classes)

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classifier = nn.Linear(3, classes)

    def features(self, x):
        return x.flatten(1) @ torch.ones(3, 3)

    def forward(self, x):
        return self.classifier(self.features(x))
"""


@pytest.mark.parametrize(
    ("kind", "body", "overrides", "line", "code"),
    [
        *[(kind, body, [], line, []) for kind, body, line in IN_RUNS],
        (
            "methods", "def loss(self, batch, client):\n    return {'a': batch.logits[0, 10]}", [],
            "A.loss ({}) raised IndexError: index 10 is out of bounds for dimension 1 with size 10",
            ["return {'a': batch.logits[0, 10]}"],
        ),
        (
            "methods", "def calibrate(self, logits, client):\n    return self._twice(logits)\n"
            "def _twice(self, logits):\n    return logits * 2 + client", ["method_args.method=fedrs+acme"],
            "A.calibrate ({}) raised NameError: name 'client' is not defined",
            ["return self._twice(logits)", "return logits * 2 + client"],
        ),
        (
            "methods", "def loss(self, batch, client):\n    y = batch.logits.exp()\n    loss = y.sum()\n    y.zero_()\n"
            "    return {'a': loss}", [],
            "A.loss ({}): its gradient raised RuntimeError: one of the variables needed for gradient computation", [],
        ),
        (
            "methods", "def terms(self, batch, client):\n    y = batch.logits.exp()\n    a = y.sum()\n    y.zero_()\n"
            "    return {'a': a}", ["method_args.method=fedlc+acme"],
            "A.terms ({}): its gradient raised RuntimeError: one of the variables needed for gradient computation", [],
        ),
        (
            "optimizers", "def correct(self, work):\n    work.gradients()['nothing'].zero_()", [],
            "A.correct ({}) raised KeyError: 'nothing'", ["work.gradients()['nothing'].zero_()"],
        ),
        (
            "models", NETWORK.replace("\n    return Net", "\n    return self.Net"), [],
            "A.Net.features ({}) raised RuntimeError: m",
            ["return x.flatten(1) @ torch.ones(3, 3)"],
        ),
    ],
)  # fmt: skip
def test_a_run_ends_with_the_line_and_frames_of_the_author(attempt, kind, body, overrides, line, code):
    error, module = attempt(kind, body, *overrides)
    assert str(error).startswith(line.format(module))
    assert error.exit_code == 1
    assert [source for _, _, source in frames_of(error)] == code
    assert {file.rpartition("/")[2] for file, *_ in frames_of(error)} <= {f"{module}.py"}
