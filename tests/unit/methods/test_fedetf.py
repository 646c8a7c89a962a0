import math

import pytest
import torch
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.engine.local import load
from fl_labelskew_plugins.methods.fedetf import FedETF, simplex_etf


@pytest.mark.parametrize(("classes", "dimensions"), [(2, 2), (5, 5), (10, 84)])
def test_vectors_of_a_simplex(classes, dimensions):
    products = simplex_etf(classes, dimensions) @ simplex_etf(classes, dimensions).T
    expected = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1)
    torch.testing.assert_close(products, expected, atol=1e-6, rtol=0)


def test_loss_equals_a_loop_over_samples(digits):
    """Softmax over the classes that the client holds, weighted by their counts."""
    run = digits("fedetf", scale=3.0)
    view, batch = run.turn(0)
    projection = view.modules()["projection"]
    etf, total = simplex_etf(10, 10).tolist(), 0.0
    for h, label in zip(batch.features.tolist(), batch.labels.tolist(), strict=True):
        rows = zip(projection.weight.tolist(), projection.bias.tolist(), strict=True)
        u = [sum(w * x for w, x in zip(row, h, strict=True)) + b for row, b in rows]
        length = math.sqrt(sum(x * x for x in u))
        z = [3.0 * sum(a * x / length for a, x in zip(v, u, strict=True)) for v in etf]
        weights = [n * math.exp(value) for n, value in zip(view.counts.tolist(), z, strict=True)]
        total -= math.log(weights[label] / sum(weights))
    loss = run.trainer.method.loss(batch, view)["cross_entropy"]
    assert loss.item() == pytest.approx(total / len(batch.labels), rel=1e-5)


def test_the_servers_classifier_predicts_as_the_fixed_one(digits):
    run = digits("fedetf", scale=10.0)
    start = run.server.weights["classifier.weight"]
    run.play([0, 1])
    run.play([1, 2])
    load(run.trainer.model, run.server.weights)
    projection = run.trainer.model.shared_modules["projection"]
    logits, labels = run.trainer.predict()
    with torch.no_grad():
        features = run.trainer.model.features(next(iter(run.trainer.inputs(run.trainer.test, None))))
        u = projection(features)
        fixed = projection.scale * u / u.norm(dim=1, keepdim=True) @ simplex_etf(10, 10).T
    first = logits[: len(features)]
    assert torch.equal(first.argmax(1), fixed.argmax(1))
    torch.testing.assert_close(first / u.norm(dim=1, keepdim=True), fixed, atol=1e-4, rtol=1e-4)
    assert (logits.argmax(1) == labels).float().mean() > 0.3  # 10 classes; untrained: 0.1
    assert not torch.equal(run.server.weights["classifier.weight"], start)


def test_a_clients_own_model_is_tested_with_its_projection(digits):
    run = digits("fedetf")
    view, batch = run.turn(0)
    projection = view.modules()["projection"]
    with torch.no_grad():
        projection.weight.copy_(torch.randn(10, 8))  # as training would
    run.trainer.method.after_round(view)
    fixed = projection(batch.features) @ simplex_etf(10, 10).T
    assert torch.equal(view.model(batch.inputs).argmax(1), fixed.argmax(1))


def test_training_changes_the_projection_and_the_scale_but_not_the_classifier(digits):
    run = digits("fedetf")
    result, start = run.fit(0), run.server.weights
    changed = {name for name, value in result.upload.items() if not torch.equal(value, start[name])}
    assert {f"shared_modules.projection.{name}" for name in ("weight", "bias", "scale")} < changed
    assert not any(name.startswith("classifier") for name in changed)


def test_dimensions_below_the_number_of_classes_are_refused(world):
    with pytest.raises(LabelSkewError, match="dimensions: 4 for 5 classes"):
        FedETF(FedETF.Params(dimensions=4)).shared_modules(world.federation)
