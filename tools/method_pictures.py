"""Draw the pictures of docs/methods: the effects of each method on logits, gradients, features or models.

    python tools/method_pictures.py

writes ``docs/pictures/method_<name>.png``. The methods' own functions compute all values; no model is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from fl_labelskew_registry import Federation, ServerView
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.ccvr import CCVR, moments, virtual_features
from fl_labelskew_plugins.methods.fd import distillation
from fl_labelskew_plugins.methods.fedaws import spread, spreadout
from fl_labelskew_plugins.methods.feddecorr import decorrelation
from fl_labelskew_plugins.methods.feddisco import METRICS, discrepancy
from fl_labelskew_plugins.methods.fedetf import simplex_etf
from fl_labelskew_plugins.methods.fedlc import calibrated_logits
from fl_labelskew_plugins.methods.fedlmd import majority_labels
from fl_labelskew_plugins.methods.fedmr import inter_class_loss, intra_class_loss
from fl_labelskew_plugins.methods.fedntd import not_true_distillation
from fl_labelskew_plugins.methods.fedproc import contrast_share, prototype_contrast
from fl_labelskew_plugins.methods.fedrod import balanced_logits
from fl_labelskew_plugins.methods.fedshift import global_prior, shifted_logits, smoothed_counts
from fl_labelskew_plugins.methods.fedvls import logit_suppression, vacant_class_distillation
from fl_labelskew_plugins.methods.flda import mixed
from fl_labelskew_plugins.methods.map import hpm_momentum
from fl_labelskew_plugins.methods.moon import model_contrast
from fl_labelskew_plugins.methods.reweighting import importance_weights, weighted_cross_entropy
from fl_labelskew_plugins.ops import mmd, restricted_logits, unit

OUT = Path(__file__).parents[1] / "docs" / "pictures"
COUNTS = torch.tensor([300, 100, 30, 10, 0, 0])
"""Training samples per class of the client in the pictures; the last two classes are missing."""
LABELS = [f"{c}\nn={n}" for c, n in enumerate(COUNTS.tolist())]
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")


def bars(axes: Axes, rows: dict[str, Tensor]) -> None:
    """Draw a group of bars for each class of the client, with one bar for each row."""
    width = 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        places = [c + (i - (len(rows) - 1) / 2) * width for c in range(len(values))]
        axes.bar(places, values.tolist(), width, label=label, color=COLOURS[i])
    axes.set_xticks(range(len(COUNTS)), LABELS)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend(frameon=False)


def pushes(calibrate: Callable[[Tensor], Tensor], loss: Callable[..., Tensor] = cross_entropy) -> Tensor:
    """The negative gradient of a loss over the client's data for each logit, if all logits are equal."""
    labels = torch.repeat_interleave(torch.arange(len(COUNTS)), COUNTS)
    logits = torch.ones(len(labels), len(COUNTS), requires_grad=True)
    loss(calibrate(logits), labels).backward()
    return -logits.grad.sum(dim=0)


def arrows(axes: Axes, points: Tensor, loss: Callable[[Tensor], Tensor], label: str) -> None:
    """Draw points in the plane, and the negative gradient of their mean loss at each point."""
    points = points.clone().requires_grad_()
    loss(points).backward()
    axes.scatter(*points.detach().T, s=8, color=COLOURS[0], label=label)
    axes.quiver(*points.detach().T, *(-points.grad * len(points)).T, color=COLOURS[1], angles="xy", width=0.004)
    axes.margins(0.15)
    axes.set_aspect("equal", "datalim")


def stars(axes: Axes, places: dict[str, tuple[float, float]]) -> None:
    """Draw prototypes or other points as stars, with their names below them."""
    for name, place in places.items():
        axes.scatter(*place, marker="*", s=120, color="black")
        axes.annotate(name, place, textcoords="offset points", xytext=(0, -14), ha="center", weight="bold")


def fedrs(left: Axes, right: Axes) -> None:
    """The logits of missing classes, and the effect of their scaling."""
    left.set_title("logits in the loss (all 1 before)")
    bars(left, {f"alpha {a:g}": restricted_logits(torch.ones(1, 6), COUNTS, alpha=a)[0] for a in (1.0, 0.5, 0.0)})
    left.set_ylim(0, 1.5)
    right.set_title("push on each logit in the first step")
    bars(right, {f"alpha {a:g}": pushes(lambda z, a=a: restricted_logits(z, COUNTS, alpha=a)) for a in (1.0, 0.5, 0.0)})
    right.set_ylim(-0.35, 0.6)


def hpm(left: Axes, right: Axes) -> None:
    """The momentum of an inherited private model, and the share of each round in it."""
    times = range(1, 101)
    for fraction, colour in zip((1.0, 0.5), COLOURS, strict=False):
        momentum = [hpm_momentum(z, rounds=100, fraction=fraction) for z in times]
        left.plot(times, momentum, color=colour, label=f"Q {fraction:g}")
    left.set_title("momentum mu of the private model, T 100")
    left.set_xlabel("rounds that have selected the client")
    left.legend(frameon=False)
    share = [1.0]
    for z in range(2, 101):
        mu = hpm_momentum(z, rounds=100, fraction=1.0)
        share = [mu * old for old in share] + [1 - mu]
        if z in (10, 40, 70, 100):
            right.plot(range(z - len(share) + 1, z + 1), share, label=f"after round {z}")
    right.set_title("share of each round's model, Q 1")
    right.set_xlabel("round")
    right.legend(frameon=False)


def fedlc(left: Axes, right: Axes) -> None:
    """The margins, and their effect in training."""
    n = torch.arange(1, 401)
    for tau, colour in zip((1.0, 3.0, 5.0), COLOURS, strict=False):
        margin = -calibrated_logits(torch.zeros(1, len(n)), n, tau=tau)[0]
        left.plot(n, margin, color=colour, label=f"tau {tau:g}")
    left.set_title("margin subtracted from a class's logit")
    left.set_xlabel("samples of the class")
    left.legend(frameon=False)
    right.set_title("push on each logit in the first step")
    bars(right, {f"tau {t:g}": pushes(lambda z, t=t: calibrated_logits(z, COUNTS, tau=t)) for t in (0.0, 1.0, 5.0)})


def fedshift(left: Axes, right: Axes) -> None:
    """The shift of one of three clients for two strengths of smoothing."""
    federation = torch.stack([COUNTS, COUNTS.flip(0), torch.full((6,), 70)])
    smoothings = {"a = 1": torch.ones(3, 1), "a = 0.1 N": federation.sum(dim=1, keepdim=True) * 0.1}
    shifts = {}
    for label, a in smoothings.items():
        prior = global_prior(smoothed_counts(federation, smoothing=a).sum(0))
        shifts[label] = lambda z, a=a[0], prior=prior: shifted_logits(z, COUNTS, prior, smoothing=a)
    left.set_title("shift ln P_k(c) / P(c)")
    bars(left, {label: shift(torch.zeros(1, 6))[0] for label, shift in shifts.items()})
    right.set_title("push on each logit in the first step")
    bars(right, {"no shift": pushes(lambda z: z), **{label: pushes(shift) for label, shift in shifts.items()}})


def fedmr(left: Axes, right: Axes) -> None:
    """The intra-class loss spreads the features of a class; the inter-class loss separates classes."""
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(100, 1, generator=generator) * torch.tensor([[1.0, 0.8]])
    features = (line + 0.15 * torch.randn(100, 2, generator=generator)).requires_grad_()
    labels = torch.zeros(100, dtype=torch.int64)
    before, optimizer = features.detach().clone(), torch.optim.SGD([features], lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        intra_class_loss(features, labels).backward()
        optimizer.step()
    for points, colour, when in ((before, COLOURS[0], "before"), (features.detach(), COLOURS[1], "after 60 steps")):
        share = torch.linalg.eigvalsh(torch.corrcoef(points.T)) / 2
        label = f"{when}: eigenvalues {share[1]:.0%}, {share[0]:.0%}"
        left.scatter(*points.T, s=6, color=colour, label=label)
    left.set_title("intra-class loss: features of one class")
    left.legend(frameon=False, loc="upper left")
    left.set_aspect("equal", "datalim")
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.5, 2.4]])
    samples = torch.randn(40, 2, generator=generator) * 0.9 + torch.tensor([1.2, 0.7])
    labels, known = torch.zeros(40, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    arrows(right, samples, lambda z: inter_class_loss(z, labels, prototypes, known), "samples of class 0")
    stars(right, dict(zip(("held: 0", "missing: 1", "missing: 2"), prototypes.tolist(), strict=True)))
    right.set_title("negative gradient of the inter-class loss")
    right.legend(frameon=False, loc="upper left")


def reweighting(left: Axes, right: Axes) -> None:
    """The weights of samples, and their effect in training."""
    federation = torch.stack([COUNTS, COUNTS.flip(0), torch.full((6,), 70)])
    prior = global_prior(smoothed_counts(federation, smoothing=1.0).sum(0))
    weights = importance_weights(COUNTS, prior, smoothing=1.0)
    left.set_title("weight of a sample, P(c) / P_k(c)")
    bars(left, {"weight": weights})
    right.set_title("push on each logit in the first step")
    weighted = pushes(lambda z: z, lambda z, y: weighted_cross_entropy(z, y, weights))
    bars(right, {"FedAvg": pushes(lambda z: z), "reweighting": weighted})


def fedrod(left: Axes, right: Axes) -> None:
    """The terms of balanced softmax, and their effect in training."""
    left.set_title("added to each logit, gamma ln n")
    bars(left, {"gamma 1": balanced_logits(torch.zeros(1, 6), COUNTS)[0]})
    right.set_title("push on each logit in the first step")
    bars(right, {f"gamma {g:g}": pushes(lambda z, g=g: balanced_logits(z, COUNTS, gamma=g)) for g in (0.0, 0.5, 1.0)})


def fedaws(left: Axes, right: Axes) -> None:
    """Embeddings of classes that are too close, and the regulariser over the steps."""
    angles = torch.tensor([0.2, 0.5, 0.8, 2.0, 2.3])
    before = torch.stack([angles.cos(), angles.sin()], dim=1)
    steps = list(itertools.accumulate(range(30), lambda classes, _: spread(classes, rate=0.1), initial=before))
    after = steps[20]
    for start, end, colour in zip(before, after, ("C0", "C1", "C2", "C3", "C4"), strict=True):
        left.plot([0, start[0]], [0, start[1]], color=colour, linestyle=":")
        left.plot([0, end[0]], [0, end[1]], color=colour)
    left.set_title("class embeddings: dotted before, solid after 20 steps")
    left.set_aspect("equal", "datalim")
    right.plot(range(31), [spreadout(classes).item() for classes in steps], color=COLOURS[0])
    right.set_title("regulariser (eq. 7), rate 0.1")
    right.set_xlabel("steps")


def fedproc(left: Axes, right: Axes) -> None:
    """The share of the contrast over the rounds, and its negative gradient for samples."""
    for mu, colour in zip((1.0, 0.5), COLOURS, strict=False):
        shares = [contrast_share(t, 100, mu=mu) for t in range(100)]
        left.plot(shares, color=colour, label=f"mu {mu:g}")
    left.set_title("share of the contrast in the loss, T 100")
    left.set_xlabel("round")
    left.legend(frameon=False)
    prototypes = torch.tensor([[0.0, 1.5], [1.5, 0.0], [-1.3, -0.6]])
    angles = torch.linspace(0, 2 * torch.pi, 25)[:-1]
    samples, known = torch.stack([angles.cos(), angles.sin()], dim=1), torch.ones(3, dtype=torch.bool)
    labels = torch.zeros(len(samples), dtype=torch.int64)
    arrows(right, samples, lambda z: prototype_contrast(z, labels, prototypes, known).mean(), "samples of class 0")
    stars(right, {f"prototype {c}": place for c, place in enumerate(prototypes.tolist())})
    right.set_title("negative gradient of the contrast")


def moon(left: Axes, right: Axes) -> None:
    """The loss by direction, and its negative gradient for features."""
    angles = torch.linspace(0, 2 * torch.pi, 73)
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    server, last = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    for temperature, colour in zip((0.5, 1.0), COLOURS, strict=False):
        losses = [model_contrast(z[None], server, last, temperature=temperature).item() for z in features]
        left.plot(angles.rad2deg(), losses, color=colour, label=f"temperature {temperature:g}")
    left.set_title("loss by direction: server at 90, last model at 0")
    left.set_xlabel("degrees")
    left.legend(frameon=False)
    subset = features[:-1:3]
    servers, lasts = server.expand(len(subset), 2), last.expand(len(subset), 2)
    arrows(right, subset, lambda z: model_contrast(z, servers, lasts), "features")
    stars(right, {"server's model": (0.0, 1.5), "last model": (1.5, 0.0)})
    right.set_title("negative gradient at each feature")


def fedmmd(left: Axes, right: Axes) -> None:
    """The discrepancy of two sets of features, and its negative gradient."""
    generator = torch.Generator().manual_seed(0)
    frozen, local = (torch.randn(60, 2, generator=generator) for _ in range(2))
    shifts = torch.linspace(0, 6, 31)
    left.plot(shifts, [mmd(local + torch.tensor([x, 0.0]), frozen) for x in shifts], color=COLOURS[0])
    left.set_title("discrepancy of two sets of features")
    left.set_xlabel("distance of their means")
    right.scatter(*frozen.T, s=8, color="0.6", label="server's model")
    arrows(right, local + torch.tensor([3.0, 0.0]), lambda z: mmd(z, frozen), "local model")
    right.legend(frameon=False, loc="upper left")
    right.set_title("negative gradient at each feature")


SERVER, LOCAL = torch.tensor([[2.0, 1.0, 0.0, 1.0, 1.5, 0.5]]), torch.tensor([[3.0, 2.0, 0.5, 0.0, -1.0, -1.0]])
"""Logits of a sample of class 0: the server's model, and the client's after some steps."""


def single_push(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The negative gradient of a loss of logits and labels for each of the logits ``LOCAL``."""
    logits = LOCAL.clone().requires_grad_()
    loss(logits, torch.tensor([0])).backward()
    return -logits.grad[0]


def fedntd(left: Axes, right: Axes) -> None:
    """The outputs of both models without the label, and the effect of the distillation on a sample's logits."""
    left.set_title("outputs for a sample of class 0, without class 0")
    models = {"server's model": SERVER, "trained model": LOCAL}
    outputs = {name: z.index_fill(1, torch.tensor([0]), -torch.inf).softmax(dim=1)[0] for name, z in models.items()}
    bars(left, outputs)
    right.set_title("push on each logit of the sample")
    distil = single_push(lambda z, y: not_true_distillation(z, SERVER, y))
    bars(right, {"cross-entropy": single_push(cross_entropy), "distillation": distil})


def fedlmd(left: Axes, right: Axes) -> None:
    """Targets of a sample, and their effect on its logits."""
    minority, label = ~majority_labels(COUNTS), torch.tensor([0])
    without = SERVER.index_fill(1, label, -torch.inf)
    masked, uniform = (z.masked_fill(~minority, -torch.inf) for z in (SERVER, torch.zeros_like(SERVER)))
    left.set_title("targets for a sample of class 0")
    targets = {"FedNTD": without, "FedLMD": masked, "FedLMD, uniform": uniform}
    bars(left, {name: z.softmax(dim=1)[0] for name, z in targets.items()})
    right.set_title("push of the distillation on each logit")
    teachers = {"FedLMD": SERVER, "FedLMD, uniform": torch.zeros_like(SERVER)}
    rows = {"FedNTD": single_push(lambda z, y: not_true_distillation(z, SERVER, y))}
    for name, g in teachers.items():
        rows[name] = single_push(lambda z, y, g=g: not_true_distillation(z, g, y, masked=~minority))
    bars(right, rows)


def fd(left: Axes, right: Axes) -> None:
    """A teacher's output, and its effect on a sample's logits."""
    teacher = torch.diag(torch.full((6,), 3.0))
    teacher[0, 3] = 2.0
    left.set_title("teacher's mean output for label 0, as probabilities")
    left.bar(range(6), teacher[0].softmax(dim=0).tolist(), color=COLOURS[0])
    left.set_xlabel("class")
    label, known, rows = torch.tensor([0]), torch.ones(6, dtype=torch.bool), []
    for gamma in (0.0, 1.0):
        logits = torch.zeros(1, 6, requires_grad=True)
        (cross_entropy(logits, label) + gamma * distillation(logits, label, teacher, known)).backward()
        rows.append(-logits.grad[0])
    for i, (gamma, row) in enumerate(zip((0, 1), rows, strict=True)):
        places = [c + 0.4 * i - 0.2 for c in range(6)]
        right.bar(places, row.tolist(), 0.4, color=COLOURS[i], label=f"gamma {gamma}")
    right.axhline(0, color="black", linewidth=0.8)
    right.set_title("push on each logit of a sample of label 0")
    right.set_xlabel("class")
    right.legend(frameon=False)


def flda(left: Axes, right: Axes) -> None:
    """The mixture by its gate, and the gradients of both models' logits."""
    general, private, scores = torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 0.0]]), torch.linspace(-5, 5, 51)
    for mixture, colour in zip(("logits", "probabilities"), COLOURS, strict=False):
        chance = [mixed(general, private, s[None], mixture=mixture).softmax(dim=1)[0, 1].item() for s in scores]
        left.plot(scores.sigmoid(), chance, color=colour, label=f"mixture: {mixture}")
    left.set_title("probability of class 1 (private model: 0, general: 1)")
    left.set_xlabel("gate a, the general model's share")
    left.legend(frameon=False)
    sizes = []
    for score in scores:
        both = [general.clone().requires_grad_(), private.clone().requires_grad_()]
        cross_entropy(mixed(*both, score[None]), torch.tensor([0])).backward()
        sizes.append([logits.grad.norm().item() for logits in both])
    for label, size, colour in zip(("general", "private"), zip(*sizes, strict=True), COLOURS, strict=False):
        right.plot(scores.sigmoid(), size, color=colour, label=label)
    right.set_title("gradient norm of each model's logits, label 0")
    right.set_xlabel("gate a")
    right.legend(frameon=False)


def feddecorr(left: Axes, right: Axes) -> None:
    """The regulariser by the correlation of two dimensions, and its negative gradient for features."""
    x, y = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0))
    correlations = torch.linspace(-1, 1, 41)
    losses = [decorrelation(torch.stack([x, r * x + (1 - r**2).sqrt() * y], dim=1)).item() for r in correlations]
    left.plot(correlations, losses, color=COLOURS[0])
    left.set_title("regulariser of two dimensions, scale: paper")
    left.set_xlabel("correlation")
    left.set_ylim(0)
    batch = torch.stack([x, 0.8 * x + 0.6 * y], dim=1)[:60]
    arrows(right, batch, decorrelation, "features of a batch")
    right.legend(frameon=False, loc="upper left")
    right.set_title("negative gradient at each feature")


def fedvls(left: Axes, right: Axes) -> None:
    """The effect of each term on the logits, and the suppression by the size of the logits."""
    labels, vacant = torch.repeat_interleave(torch.arange(len(COUNTS)), COUNTS), torch.tensor([4, 5])
    teacher = torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0, 0.0]).expand(len(labels), -1)
    losses = {
        "distillation": lambda z: vacant_class_distillation(z, teacher, vacant),
        "suppression, form: paper": lambda z: logit_suppression(z, labels, COUNTS, form="paper"),
    }
    rows = {}
    for name, loss in losses.items():
        logits = torch.zeros(len(labels), len(COUNTS), requires_grad=True)
        loss(logits).backward()
        rows[name] = -logits.grad.sum(dim=0)
    bars(left, rows)
    left.set_title("push on each logit, summed over the client's data")
    sizes = torch.linspace(-10, 5, 31)
    for form, colour in zip(("code", "paper"), COLOURS, strict=False):
        values = [logit_suppression(torch.full((len(labels), 6), z), labels, COUNTS, form=form) for z in sizes]
        right.plot(sizes, values, color=colour, label=f"form: {form}")
    right.set_title("suppression, if all logits are equal")
    right.set_xlabel("logit")
    right.legend(frameon=False)


def fedetf(left: Axes, right: Axes) -> None:
    """The fixed vectors of three classes and the negative gradient for one; the loss by the angle."""
    etf = simplex_etf(3, 3)
    vectors = etf @ torch.linalg.svd(etf).Vh[:2].T

    def loss(features: Tensor, scale: float = 3.0) -> Tensor:
        return cross_entropy(scale * unit(features) @ vectors.T, torch.zeros(len(features), dtype=torch.int64))

    angles = torch.linspace(0, 2 * torch.pi, 25)[:-1]
    arrows(left, torch.stack([angles.cos(), angles.sin()], dim=1), loss, "features of class 0")
    stars(left, {f"v{c}": tuple(vectors[c].tolist()) for c in range(3)})
    left.legend(frameon=False)
    left.set_title("negative gradient of the loss, class 0")
    turned = torch.linspace(-180, 180, 73)
    start, side = vectors[0], torch.stack([-vectors[0, 1], vectors[0, 0]])
    places = [start * torch.cos(a) + side * torch.sin(a) for a in turned.deg2rad()]
    for scale, colour in zip((1.0, 3.0, 10.0), COLOURS, strict=False):
        right.plot(turned, [loss(place[None], scale) for place in places], color=colour, label=f"s = {scale:g}")
    right.set_xlabel("angle between the feature and v0, in degrees")
    right.set_title("loss of a sample of class 0")
    right.legend(frameon=False)


def fedgela(left: Axes, right: Axes) -> None:
    """The lengths of a client's class vectors, and the push on each logit."""
    lengths = len(COUNTS) * COUNTS / COUNTS.sum()
    bars(left, {"client": lengths, "server": torch.ones(len(COUNTS))})
    left.set_title("length of each class's vector")
    bars(right, {"scaled": pushes(lambda z: lengths * (z - 1)), "plain softmax": pushes(lambda z: z - 1)})
    right.set_title("push on v h of each class, if all are 0")


def feddisco(left: Axes, right: Axes) -> None:
    """The discrepancy of a client with some of ten classes, and the weight of such clients in one round."""
    counts = [torch.tensor([600 // c] * c + [0] * (10 - c)) for c in range(1, 11)]
    for metric, colour in zip(METRICS, COLOURS, strict=True):
        left.plot(range(1, 11), [discrepancy(n, metric=metric) for n in counts], color=colour, label=metric)
    left.set_title("discrepancy")
    discrepancies = torch.stack([discrepancy(n) for n in counts])
    for a, colour in zip((0.0, 0.5, 1.0), COLOURS, strict=False):
        weights = (0.1 - a * discrepancies / discrepancies.sum() + 0.1).clamp(min=0)
        right.plot(range(1, 11), weights / weights.sum(), color=colour, label=f"a = {a:g}, b = 0.1")
    right.set_title("weight in a round of these 10 clients")
    right.set_ylim(0)
    for axes in (left, right):
        axes.set_xlabel("classes of the client, with equal numbers of samples")
        axes.legend(frameon=False)


def ccvr(left: Axes, right: Axes) -> None:
    """Features and virtual features of three classes; regions of a classifier before and after its calibration."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.tensor([[[1.0, 0.3], [0.0, 0.4]], [[0.5, 0.0], [0.3, 0.8]], [[0.6, -0.4], [0.0, 0.6]]])
    centres = torch.tensor([[0.0, 0.0], [4.0, 1.0], [1.5, 4.0]])
    features = centres[:, None] + torch.randn(3, 60, 2, generator=generator) @ mixing
    sums, squares = features.sum(1), features.mT @ features
    shared = {"sums": sums, "squares": squares, "counts": torch.full((3,), 60)}
    drawn = virtual_features(*moments(*(value.double() for value in shared.values())), 60, generator)
    for real, virtual, colour in zip(features, drawn, COLOURS, strict=False):
        left.scatter(*real.T, s=8, color=colour)
        left.scatter(*virtual.T, s=14, facecolors="none", edgecolors=colour)
    left.set_title("features of clients (dots), virtual features (rings)")
    start = {"classifier.weight": torch.tensor([[0.0, 0.0], [0.3, 0.0], [0.0, 0.3]]), "classifier.bias": torch.zeros(3)}
    start["classifier.bias"][0] = 1.5
    federation = Federation(2, 2, 1, 1, 3, 2, 180, 60, 0)
    after = CCVR().after_aggregation(start, ServerView(0, shared, federation, generator, lambda _: nn.Identity()))
    x, y = torch.meshgrid(torch.linspace(-4, 7, 200), torch.linspace(-3, 7, 200), indexing="xy")
    for weights, style, label in ((start, "dashed", "before"), (after, "solid", "after")):
        grid = torch.stack([x, y], dim=-1) @ weights["classifier.weight"].T + weights["classifier.bias"]
        right.contour(x, y, grid.argmax(-1), levels=[0.5, 1.5], colors="black", linestyles=style, linewidths=1)
        right.plot([], [], color="black", linestyle=style, linewidth=1, label=label)
    for real, colour in zip(features, COLOURS, strict=False):
        right.scatter(*real.T, s=8, color=colour)
    right.set_title("borders between classes, before and after")
    right.legend(frameon=False, loc="lower left")


PICTURES = {
    "fedrs": fedrs,
    "map": hpm,
    "fedlc": fedlc,
    "fedshift": fedshift,
    "fedmr": fedmr,
    "fedproc": fedproc,
    "moon": moon,
    "fedmmd": fedmmd,
    "fedntd": fedntd,
    "fedlmd": fedlmd,
    "reweighting": reweighting,
    "fedrod": fedrod,
    "fedaws": fedaws,
    "fd": fd,
    "flda": flda,
    "feddecorr": feddecorr,
    "fedvls": fedvls,
    "fedetf": fedetf,
    "fedgela": fedgela,
    "feddisco": feddisco,
    "ccvr": ccvr,
}


def main() -> None:
    """Draw all pictures."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        draw(*figure.subplots(1, 2))
        figure.savefig(OUT / f"method_{name}.png", dpi=110, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
