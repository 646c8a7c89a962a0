import numpy as np
import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Data, LabelSkewError, Method
from torch import nn

from fl_labelskew_plugins.data.given import given_data
from fl_labelskew_plugins.models.mlp import MLP
from fl_labelskew_plugins.models.module import ModuleNetwork
from fl_labelskew_plugins.recipe import parse, plugins
from fl_labelskew_plugins.recipe.mistakes import quoted

RNG = np.random.default_rng(0)
X, Y = RNG.random((30, 1, 4, 4)), np.arange(30) % 3


class Net(nn.Module):
    """An input layer, a hidden one and a head, none of them called as ours are."""

    def __init__(self, classes=3, after=None):
        super().__init__()
        self.first, self.head, self.after = nn.Linear(16, 5), nn.Linear(5, classes), after or nn.Identity()

    def forward(self, x):
        return self.after(self.head(torch.relu(self.first(x.flatten(1)))))


def torch_data(x, y):
    """As torchvision's: ``targets``, ``classes``, and items of a sample and a label."""
    made = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    made.targets, made.classes = list(y), ("cat", "dog", "eel")
    return made


class Items(list):
    """A data set of two samples, which is a list itself."""

    targets = (0, 1)

    def __getitem__(self, k):
        return super().__getitem__(k), self.targets[k]


def test_a_module_gets_features_and_a_classifier_and_is_restored():
    net = Net()
    network = ModuleNetwork(net)
    built = network.build((1, 4, 4), 3)
    samples = torch.randn(6, 1, 4, 4)
    assert torch.equal(built(samples), net(samples))
    assert torch.equal(built.features(samples), torch.relu(net.first(samples.flatten(1))))
    assert built.classifier.weight is not net.head.weight
    with torch.no_grad():
        built.classifier.weight.zero_()
    whole = built.whole()
    assert type(whole) is Net
    assert whole.head.weight.count_nonzero() == 0
    assert net.head.weight.count_nonzero() == 15
    assert net.training


def test_inspecting_a_module_keeps_its_modes():
    net = Net(after=nn.Dropout())
    net.after.eval()
    built = ModuleNetwork(net).build((1, 4, 4), 3)
    assert [net.training, net.after.training, built.training, built.body.after.training] == [True, False, True, False]


@pytest.mark.parametrize("bias", [-9.0, 0.0, 9.0])  # also where no logit of any sample is changed by it
def test_a_relu_behind_the_head_is_detected(bias):
    net = Net(after=nn.ReLU())
    nn.init.constant_(net.head.bias, bias)
    line = message(lambda: ModuleNetwork(net).build((1, 4, 4), 3))
    assert "Net does not return the output of head, its last Linear layer with an output per class" in line


def test_a_module_with_a_classifier_is_used_unchanged_and_a_linear_layer_is_one():
    ours = MLP().build((1, 4, 4), 3)
    assert type(ModuleNetwork(ours).build((1, 4, 4), 3)) is type(ours)
    layer = nn.Linear(16, 3)
    built = ModuleNetwork(layer).build((16,), 3)
    assert built.features(torch.ones(2, 16)).shape == (2, 16)
    assert isinstance(built.whole(), nn.Linear)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "Sequential has no nn.Linear layer; end it with nn.Linear"),
        (Net(7), r"head of Net has 7 outputs, but the data have 3 classes; use nn.Linear\(5, 3\)"),
        (Net(after=nn.Softmax(1)), "Net does not return the output of head, its last Linear layer with an output per"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), r"Sequential: 1\.weight belongs to a lazy layer and has no"),
        (MLP().build((1, 4, 4), 4), "classifier of FeatureNet has 4 outputs, but the data have 3"),
        (nn.Sequential(nn.Linear(9, 3)), r"Sequential does not accept samples of shape \(1, 4, 4\): .*mat1 and mat2"),
    ],
)
def test_an_unsuitable_module_is_a_one_line_error(module, line):
    with pytest.raises(LabelSkewError, match=f"^model: {line}"):
        ModuleNetwork(module).build((1, 4, 4), 3)


@pytest.mark.parametrize(
    "given",
    [
        ((X, Y), (X[:6], Y[:6])),
        {"train": (torch.from_numpy(X), torch.from_numpy(Y)), "test": (X[:6].tolist(), Y[:6].tolist())},
        (torch_data(X, Y), torch_data(X[:6], Y[:6])),
    ],
)
def test_data_of_each_form(given):
    data = given_data(given)
    assert (data.train.x.shape, data.train.x.dtype, data.train.y.dtype) == ((30, 1, 4, 4), np.float32, np.int64)
    assert np.array_equal(data.train.x, X.astype(np.float32))
    assert (data.test.y == Y[:6]).all()
    named = isinstance(given, tuple) and hasattr(given[0], "classes")
    assert data.class_names == (["cat", "dog", "eel"] if named else ["0", "1", "2"])


def test_bytes_stay_bytes_and_a_data_object_is_used_unchanged():
    assert given_data(((X.astype(np.uint8), Y), (X[:6].astype(np.uint8), Y[:6]))).train.x.dtype == np.uint8
    data = given_data(((X, Y), (X, Y)))
    assert isinstance(data, Data)
    assert given_data(data) is data


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (X, r"ndarray is not a pair of a training and a test part; give \(train, test\), each"),
        ((X, (X, Y)), r"the training part is a ndarray; give \(x, y\), or a torch Dataset with targets"),
        (((X, Y[:5]), (X, Y)), r"the training part has samples of shape \(30, 1, 4, 4\) and labels of shape \(5,\)"),
        (((X, Y / 2), (X, Y)), "the training part's labels are not class numbers; use integers from 0"),
        (((X[:0], Y[:0]), (X, Y)), "the training part has no samples; give"),
        ((([[1.0], [1.0, 2.0]], [0, 1]), (X, Y)), "the training part's rows have different lengths; give"),
        (((X.astype(str), Y), (X, Y)), "the training part's samples are <U.*, not numbers; give numeric"),
        ((Items([object()] * 2), (X, Y)), "the training part's samples are of type object; give the Dataset a"),
        ((Items([torch.ones(1, 4, 4), torch.ones(1, 5, 5)]), (X, Y)), "the training part's samples have 2 shapes; re"),
        (((X, Y), (X[:, 0], Y)), r"samples are of shape \(1, 4, 4\) in training and \(4, 4\) in test"),
    ],
)
def test_invalid_data_are_a_one_line_error(given, line):
    with pytest.raises(LabelSkewError, match=f"^dataset: {line}"):
        given_data(given)


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("model", "resnet18", "is a str; give an nn.Module, or name a function in model_args.model of the recipe"),
        ("partition", "iid", "is not a list; give a list of indices per client"),
        ("method", dict, "is a type; give an object of fl_labelskew_registry.Method"),
    ],
)
def test_objects_of_a_wrong_kind_are_a_one_line_error(name, given, line):
    assert message(lambda: plugins.from_objects(**{name: given})) == f"{name}: {quoted(given)} {line}"


def test_there_must_be_one_index_list_per_client():
    partition = plugins.from_objects(partition=[[0, 3], [1]])["partition_args"]
    assert [part.tolist() for part in partition.split(Y, None, clients=2, rng=RNG)] == [[0, 3], [1]]
    with pytest.raises(LabelSkewError, match=r"2 lists of indices for 4 clients; .*client_num_in_total': 2"):
        partition.split(Y, None, clients=4, rng=RNG)


def test_a_recipe_has_the_objects_and_is_checked_with_them():
    class Private(Method):
        """Protects uploads, which SCAFFOLD's control variates would give away."""

        def protects(self):
            return True

    text = "data_args: {dataset: digits}\nmodel_args: {model: mlp, hidden: [3]}\nmethod_args: {method: fedavg}\n"
    given = plugins.from_objects(model=Net(10), method=Private())
    recipe = parse.parse(text, objects=given)
    assert (recipe.model.model, recipe.method_name) == ("Net", "Private")
    assert recipe.network is given["model_args"]
    assert "model: Net" in recipe.dump()
    with pytest.raises(parse.RecipeError, match="SCAFFOLD sends more than weights, but the method's protection"):
        parse.parse(text, overrides=["train_args.federated_optimizer=SCAFFOLD"], objects=given)
