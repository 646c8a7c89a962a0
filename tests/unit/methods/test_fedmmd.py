import pytest
import torch
from loss_checks import assert_finite
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedmmd import FedMMD
from fl_labelskew_plugins.ops import mmd


def test_the_servers_model_is_kept_next_to_the_trained_model(world):
    method = FedMMD(FedMMD.Params(lam=0.5))
    view, server = world.begun(method)
    batch = world.batch()
    terms = method.loss(batch, view)
    expected = mmd(batch.features, server.features(batch.inputs)).item()
    assert terms["mmd"].item() == pytest.approx(0.5 * expected, rel=1e-4)
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    assert_finite(sum(terms.values()), *world.net.parameters())
