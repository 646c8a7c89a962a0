import pytest
import torch
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedphp import FedPHP
from fl_labelskew_plugins.methods.map import distillation


@pytest.mark.parametrize("epochs", [1, 5])
def test_one_stage_that_is_uploaded(epochs):
    (stage,) = FedPHP().stages(epochs)
    assert (stage.name, stage.epochs, stage.upload) == ("personalise", epochs, True)


def test_logits_are_never_restricted(world):
    logits = torch.randn(2, 5)
    assert FedPHP().calibrate(logits, world.client(stage="personalise")) is logits


def test_round_after_round(world):
    method, batch = FedPHP(FedPHP.Params(temperature=2.0)), world.batch()
    first = world.client(stage="personalise")
    method.before_round(first)
    assert list(method.loss(batch, first)) == ["cross_entropy"]
    method.after_round(first)

    with torch.no_grad():
        world.net.classifier.weight.mul_(-1)
    second = world.client(stage="personalise", state=first.state, times_selected=2)
    method.before_round(second)
    batch = world.batch()
    terms = method.loss(batch, second)
    teacher = second.frozen(method.personalised(first.state))
    target = distillation(batch.logits, teacher(batch.inputs), temperature=2.0)
    torch.testing.assert_close(terms["transfer"], 0.05 * target)
    torch.testing.assert_close(terms["cross_entropy"], 0.95 * cross_entropy(batch.logits, batch.labels))
