import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedlc import FedLC, calibrated_logits, others_cross_entropy


def naive_calibrated(logits, counts, tau, missing):
    out = logits.clone()
    for row in range(logits.shape[0]):
        for c in range(logits.shape[1]):
            n = int(counts[c])
            if n == 0 and missing == "mask":
                out[row, c] = -math.inf
            else:
                out[row, c] = logits[row, c] - tau * max(n, 1) ** -0.25
    return out


def naive_others(logits, labels):
    losses = []
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        terms = [math.exp(z[i]) for i in range(len(z)) if i != y]
        losses.append(math.log(sum(terms)) - z[y] if sum(terms) > 0 else 0.0)
    return sum(losses) / len(losses)


@given(
    rows=st.integers(1, 5),
    counts=st.lists(st.integers(0, 5000), min_size=1, max_size=7),
    tau=st.floats(0, 10),
    missing=st.sampled_from(["one", "mask"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    count_dtype=st.sampled_from([torch.int64, torch.float32]),
)
def test_calibrated_logits_equals_a_double_loop(*, rows, counts, tau, missing, dtype, count_dtype):
    logits = torch.randn(rows, len(counts), dtype=dtype)
    n = torch.tensor(counts, dtype=count_dtype)
    ours = calibrated_logits(logits, n, tau=tau, missing=missing)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, naive_calibrated(logits, n, tau, missing))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3))
def test_others_equals_a_double_loop(rows, classes, masked):
    logits = torch.randn(rows, classes, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,))
    hidden = [c for c in range(classes) if c not in labels.tolist()][:masked]
    logits[:, hidden] = -torch.inf
    assert others_cross_entropy(logits, labels).item() == pytest.approx(naive_others(logits, labels))


def test_hand_numbers():
    logits, counts = torch.zeros(1, 3), torch.tensor([16, 81, 0])
    assert calibrated_logits(logits, counts, tau=6.0)[0].tolist() == pytest.approx([-3.0, -2.0, -6.0])
    assert calibrated_logits(logits, counts, tau=6.0, missing="mask")[0].tolist() == [-3.0, -2.0, -math.inf]
    # two classes, printed form: z_other - z_own
    assert others_cross_entropy(torch.tensor([[5.0, 2.0]]), torch.tensor([0])).item() == -3


def test_the_mask_without_missing_classes_has_no_effect(assert_plain):
    assert_plain(FedLC(FedLC.Params(tau=0.0, missing="mask")), counts=torch.ones(5, dtype=torch.long))


@pytest.mark.parametrize("loss", [cross_entropy, others_cross_entropy])
def test_one_class_only_under_the_mask(loss):
    z = torch.randn(3, 4, requires_grad=True)
    value = loss(calibrated_logits(z, torch.tensor([0, 9, 0, 0]), tau=1.0, missing="mask"), torch.tensor([1, 1, 1]))
    value.backward()
    assert value.item() == 0
    assert not z.grad.any()


@pytest.mark.parametrize("denominator", ["full", "others"])
def test_method(world, denominator):
    method, batch = FedLC(FedLC.Params(tau=2.0, denominator=denominator)), world.batch()
    scores = naive_calibrated(batch.logits.detach(), world.counts, 2.0, "one")
    expected = naive_others(scores, batch.labels) if denominator == "others" else cross_entropy(scores, batch.labels)
    assert method.loss(batch, world.client())["cross_entropy"].item() == pytest.approx(float(expected), rel=1e-5)
