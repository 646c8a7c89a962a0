"""The pictures of docs/methods: what each method does to logits, gradients, features or models, by its own functions.

    python tools/method_pictures.py

writes ``docs/pictures/method_<name>.svg``. Nothing is trained, and nothing drawn that the functions did not compute.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedlc import calibrated_logits
from fl_labelskew_plugins.methods.fedmr import inter_class_loss, intra_class_loss
from fl_labelskew_plugins.methods.fedshift import global_prior, shifted_logits
from fl_labelskew_plugins.methods.map import hpm_momentum
from fl_labelskew_plugins.ops import restricted_logits

OUT = Path(__file__).parents[1] / "docs" / "pictures"
COUNTS = torch.tensor([300, 100, 30, 10, 0, 0])
"""Training samples of the client in the pictures, by class; it lacks the last two."""
LABELS = [f"{c}\nn={n}" for c, n in enumerate(COUNTS.tolist())]
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")


def bars(axes: Axes, rows: dict[str, Tensor]) -> None:
    """A group of bars for each class of the client, one for each row."""
    width = 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        places = [c + (i - (len(rows) - 1) / 2) * width for c in range(len(values))]
        axes.bar(places, values.tolist(), width, label=label, color=COLOURS[i])
    axes.set_xticks(range(len(COUNTS)), LABELS)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend(frameon=False)


def pushes(calibrate: Callable[[Tensor], Tensor]) -> Tensor:
    """What a batch's cross-entropy does to each logit, summed over the batch, where all logits are equal at first."""
    labels = torch.repeat_interleave(torch.arange(len(COUNTS)), COUNTS)
    logits = torch.ones(len(labels), len(COUNTS), requires_grad=True)
    cross_entropy(calibrate(logits), labels).backward()
    return -logits.grad.sum(dim=0)


def fedrs(left: Axes, right: Axes) -> None:
    """How far missing classes are pushed down."""
    left.set_title("logits in the loss (all 1 before)")
    bars(left, {f"alpha {a:g}": restricted_logits(torch.ones(1, 6), COUNTS, alpha=a)[0] for a in (1.0, 0.5, 0.0)})
    left.set_ylim(0, 1.5)
    right.set_title("push on each logit in the first step")
    bars(right, {f"alpha {a:g}": pushes(lambda z, a=a: restricted_logits(z, COUNTS, alpha=a)) for a in (1.0, 0.5, 0.0)})
    right.set_ylim(-0.35, 0.6)


def hpm(left: Axes, right: Axes) -> None:
    """What an inherited private model is made of."""
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
    right.set_title("share of each round's model in it, Q 1")
    right.set_xlabel("round")
    right.legend(frameon=False)


def fedlc(left: Axes, right: Axes) -> None:
    """Margins, and what they do in training."""
    n = torch.arange(1, 401)
    for tau, colour in zip((1.0, 3.0, 5.0), COLOURS, strict=False):
        margin = -calibrated_logits(torch.zeros(1, len(n)), n, tau=tau)[0]
        left.plot(n, margin, color=colour, label=f"tau {tau:g}")
    left.set_title("margin: what a class's logit loses")
    left.set_xlabel("samples of the class")
    left.legend(frameon=False)
    right.set_title("push on each logit in the first step")
    bars(right, {f"tau {t:g}": pushes(lambda z, t=t: calibrated_logits(z, COUNTS, tau=t)) for t in (0.0, 1.0, 5.0)})


def fedshift(left: Axes, right: Axes) -> None:
    """The shift of one of three clients, by its smoothing."""
    federation = torch.stack([COUNTS, COUNTS.flip(0), torch.full((6,), 70)])
    smoothings = {"a = 1": torch.ones(3, 1), "a = 0.1 N": federation.sum(dim=1, keepdim=True) * 0.1}
    shifts = {}
    for label, a in smoothings.items():
        prior = global_prior(federation, smoothing=a)
        shifts[label] = lambda z, a=a[0], prior=prior: shifted_logits(z, COUNTS, prior, smoothing=a)
    left.set_title("shift ln P_k(c) / P(c)")
    bars(left, {label: shift(torch.zeros(1, 6))[0] for label, shift in shifts.items()})
    right.set_title("push on each logit in the first step")
    bars(right, {"no shift": pushes(lambda z: z), **{label: pushes(shift) for label, shift in shifts.items()}})


def fedmr(left: Axes, right: Axes) -> None:
    """One class's features spread by the one loss, samples held back from other classes by the other."""
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
    samples = (torch.randn(40, 2, generator=generator) * 0.9 + torch.tensor([1.2, 0.7])).requires_grad_()
    known = torch.ones(3, dtype=torch.bool)
    inter_class_loss(samples, torch.zeros(40, dtype=torch.int64), prototypes, known).backward()
    arrows = -samples.grad * len(samples)
    right.scatter(*samples.detach().T, s=8, color=COLOURS[0], label="samples of class 0")
    right.quiver(*samples.detach().T, *arrows.T, color=COLOURS[1], angles="xy", width=0.004)
    right.scatter(*prototypes.T, marker="*", s=120, color="black", label="prototypes")
    for name, place in zip(("held: 0", "missing: 1", "missing: 2"), prototypes.tolist(), strict=True):
        right.annotate(name, place, textcoords="offset points", xytext=(0, -12), ha="center", weight="bold")
    right.set_title("inter-class loss: where it pushes")
    right.legend(frameon=False, loc="upper left")
    right.margins(0.15)
    right.set_aspect("equal", "datalim")


PICTURES = {"fedrs": fedrs, "map": hpm, "fedlc": fedlc, "fedshift": fedshift, "fedmr": fedmr}


def main() -> None:
    """Write them all."""
    mpl.rcParams.update({"svg.hashsalt": "labelskew", "font.size": 9})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        draw(*figure.subplots(1, 2))
        figure.savefig(OUT / f"method_{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
