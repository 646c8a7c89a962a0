import pytest
import torch
from fl_labelskew_registry import LabelSkewError
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.engine.local import load
from fl_labelskew_plugins.methods.fedetf import simplex_etf
from fl_labelskew_plugins.methods.fedgela import FedGELA, adapted_logits


def test_logits_equal_a_loop():
    features, counts = torch.randn(4, 6), torch.tensor([6, 0, 3])
    v = simplex_etf(3, 6).tolist()
    expected = [
        [5 * (3 * n / 9) * sum(a * b for a, b in zip(row, h, strict=True)) for row, n in zip(v, (6, 0, 3), strict=True)]
        for h in features.tolist()
    ]
    torch.testing.assert_close(adapted_logits(features, counts, scale=5.0), torch.tensor(expected))
    assert not adapted_logits(features, counts, scale=5.0)[:, 1].any()


@pytest.mark.parametrize("features", ["unit", "batch_norm"])
def test_the_servers_classifier_predicts_as_the_fixed_one(digits, features):
    run = digits("fedgela", hidden=16, features=features)
    run.play([0, 1])
    run.play([1, 2])
    load(run.trainer.model, run.server.weights)
    logits, labels = run.trainer.predict()
    with torch.no_grad():
        h = run.trainer.model.features(next(iter(run.trainer.inputs(run.trainer.test, None))))
        lengths = h.norm(dim=1, keepdim=True) if features == "unit" else torch.ones(len(h), 1)
        norm = run.trainer.model.shared_modules["norm"].eval() if features == "batch_norm" else lambda x: x / lengths
        fixed = 5 * norm(h) @ simplex_etf(10, 16).T
    torch.testing.assert_close(logits[: len(h)] / lengths, fixed, atol=1e-4, rtol=1e-4)
    assert (logits.argmax(1) == labels).float().mean() > 0.3  # 10 classes; untrained: 0.1


def test_a_clients_own_model_has_its_scales(digits):
    run = digits("fedgela", hidden=16)
    view, batch = run.turn(0)
    own = run.trainer.method.private_logits(batch.inputs, view)
    assert run.trainer.method.personalises()
    assert not own[:, view.counts == 0].any()
    loss = run.trainer.method.loss(batch, view)["cross_entropy"]
    torch.testing.assert_close(loss, cross_entropy(own, batch.labels))


def test_a_network_with_fewer_features_than_classes_is_refused(world):
    with pytest.raises(LabelSkewError, match="at least as many features as classes, but the network has 3"):
        FedGELA().shared_modules(world.federation)
