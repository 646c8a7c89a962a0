"""Properties of all losses: correct gradients, finite gradients for extreme inputs, float32 for bfloat16."""

import pytest
import torch
from loss_checks import assert_finite
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods import (
    fd,
    fedaws,
    feddecorr,
    fedlc,
    fedmr,
    fedntd,
    fedproc,
    fedrod,
    fedshift,
    fedvls,
    flda,
    map,
    moon,
    reweighting,
)
from fl_labelskew_plugins.ops import mmd, restricted_logits

LABELS, COUNTS = torch.tensor([0, 1, 2, 1, 0]), torch.tensor([9, 1, 3, 0])
MAJORITY, KNOWN, VACANT = COUNTS > 3, torch.tensor([True, True, False, True]), torch.tensor([2, 3])
PRIOR = torch.tensor([0.2, 0.3, 0.1, 0.4])


def of_logits(correct, loss=cross_entropy):
    return lambda z, g: loss(correct(z, COUNTS), LABELS)


LOSSES = {
    "fd": lambda z, g: fd.distillation(z, LABELS, g[:4], KNOWN),
    "fedaws": lambda z, g: fedaws.spreadout(z, margin=1.9),
    **{f"feddecorr {s}": lambda z, g, s=s: feddecorr.decorrelation(z, scale=s) for s in ("paper", "code")},
    **{
        f"fedlc {missing} {loss.__name__}": of_logits(
            lambda z, n, missing=missing: fedlc.calibrated_logits(z, n, tau=2.0, missing=missing), loss
        )
        for missing in ("one", "mask")
        for loss in (cross_entropy, fedlc.others_cross_entropy)
    },
    "fedlmd": lambda z, g: fedntd.not_true_distillation(z, g, LABELS, masked=MAJORITY, tau=2.0),
    **{f"fedmr intra {s}": lambda z, g, s=s: fedmr.intra_class_loss(z, LABELS, scale=s) for s in ("paper", "code")},
    "fedmr inter": lambda z, g: fedmr.inter_class_loss(z, LABELS, g[:4], KNOWN),
    "fedntd": lambda z, g: fedntd.not_true_distillation(z, g, LABELS, tau=2.0),
    "fedproc": lambda z, g: fedproc.prototype_contrast(z, LABELS, g[:4], KNOWN).sum(),
    "fedrod one": of_logits(fedrod.balanced_logits),
    "fedrod mask": of_logits(lambda z, n: fedrod.balanced_logits(z, n, missing="mask")),
    "fedrs": of_logits(lambda z, n: restricted_logits(z, n, alpha=0.3)),
    "fedrs proportional": of_logits(lambda z, n: restricted_logits(z, n, alpha=0.3, scaling="proportional")),
    "fedshift": of_logits(lambda z, n: fedshift.shifted_logits(z, n, PRIOR, smoothing=0.01)),
    "fedvls distillation": lambda z, g: fedvls.vacant_class_distillation(z, g, VACANT),
    **{f"fedvls {f}": lambda z, g, f=f: fedvls.logit_suppression(z, LABELS, COUNTS, form=f) for f in ("paper", "code")},
    "flda": lambda z, g: cross_entropy(flda.mixed(z, g, g[:, 0]), LABELS),
    "flda logits": lambda z, g: cross_entropy(flda.mixed(z, z.flip(1), z[:, 0]), LABELS),
    "flda probabilities": lambda z, g: cross_entropy(
        flda.mixed(z, z.flip(1), z[:, 0], mixture="probabilities"), LABELS
    ),
    "map": map.distillation,
    "moon": lambda z, g: moon.model_contrast(z, g, g.flip(0)),
    "reweighting": lambda z, g: reweighting.weighted_cross_entropy(z, LABELS, PRIOR.to(z)),
    "mmd": mmd,
    "fedproc, cold": lambda z, g: fedproc.prototype_contrast(z, LABELS, g[:4], KNOWN, temperature=1e-3).sum(),
    "moon, cold": lambda z, g: moon.model_contrast(z, g, g.flip(0), temperature=1e-3),
}


def but(*names):
    return pytest.mark.parametrize(
        "loss", [pytest.param(LOSSES[name], id=name) for name in LOSSES if name not in names]
    )


@but("mmd", "fedproc, cold", "moon, cold")  # of mmd's, without the bandwidth's: test_ops.py
def test_the_gradient_is_that_of_the_value(loss):
    z, g = torch.randn(2, 5, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: loss(z, g), z.requires_grad_())


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
@but()
def test_extreme_inputs_have_a_finite_gradient(loss, size):
    z = (size * torch.randn(5, 4)).requires_grad_()
    assert_finite(loss(z, size * torch.randn(5, 4)), z)


@but("fedaws", "reweighting", "flda logits", "flda probabilities")
def test_bfloat16_is_computed_in_float32(loss):
    low, g = torch.randn(2, 5, 4).bfloat16()
    exact = low.float().requires_grad_()
    value, expected = loss(low.requires_grad_(), g), loss(exact, g.float())
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    (gradient,), (full,) = torch.autograd.grad(value, low), torch.autograd.grad(expected, exact)
    assert torch.equal(gradient, full.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(exact, g.float()), value)


Z, Y, ONE, TWO = torch.zeros(2, 3), torch.tensor([0, 1]), torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: fedlc.calibrated_logits(Z, Z[0], tau=1.0, missing="no"), "`missing` to be one of one, mask"),
        (lambda: fedlc.calibrated_logits(Z, TWO, tau=1.0), r"`counts` to be of shape \(3,\) but got \(2,\)"),
        (lambda: flda.mixed(Z, Z, TWO, mixture="x"), "`mixture` to be one of logits, probabilities but got 'x'"),
        (lambda: reweighting.weighted_cross_entropy(Z, Y, TWO), r"`weights` to be of shape \(3,\)"),
        (lambda: restricted_logits(Z, ONE, alpha=0.5), r"`counts` to be of shape \(3,\) but got \(1,\)"),
    ],
)
def test_a_wrong_argument_is_named(call, line):
    with pytest.raises(ValueError, match=line):
        call()
