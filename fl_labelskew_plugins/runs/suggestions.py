"""What follows from a survey: which methods fit data of this skew, each with its reason and the line for the recipe.

A rule says when it holds, what the paper gives as its reason and what was measured here (docs/results.md), also where
that speaks against it, or that nothing was. Rules stand beside each other: nothing here ranks methods. Our numbers are
of Fashion-MNIST with 10 clients; in both partitions clients were about 50 times as far from the prior as by chance:

- P10C2, two classes each: 80 % of the (client, class) pairs missing, sizes of clients up to 1 : 3;
- Dirichlet 0.1: 32 to 39 % missing, sizes up to 1 : 17.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_labelskew_plugins.data.skew import Skew

ALIKE = 1.5
"""Clients that are at most so many times as far from the prior as by chance count as alike."""
MOSTLY = 0.5
"""Share of missing pairs from which clients lack most classes: between the 39 % and the 80 % of what was measured."""
UNEVEN = 10.0
"""Ratio of clients' sizes from which equal weights are warned of: between the 3 and the 14 of what was measured."""


@dataclass(frozen=True)
class Facts:
    """What rules look at; see :class:`.skew.Skew` for the first three.

    Args:
        missing: share of (client, class) pairs without a sample.
        beyond: times the distance that chance would give.
        sizes: samples of the largest client to those of the smallest.
        rare: (client, class) pairs with a single sample.
        pairs: (client, class) pairs with any.
    """

    missing: float
    beyond: float
    sizes: float
    rare: int
    pairs: int

    @classmethod
    def of(cls, counts: NDArray[np.int64], skew: Skew) -> Facts:
        """Those of counts ``(K, C)`` and their skew."""
        single, held = int((counts == 1).sum()), int((counts > 0).sum())
        return cls(skew.missing_pairs, skew.beyond_chance, skew.size_ratio, single, held)

    @property
    def skewed(self) -> bool:
        """Whether there is more skew than by chance."""
        return self.beyond > ALIKE

    @property
    def lacking(self) -> bool:
        """Whether clients lack classes, and not by chance."""
        return self.skewed and self.missing > 0

    @property
    def mostly_lacking(self) -> bool:
        """Whether they lack most."""
        return self.skewed and self.missing >= MOSTLY


@dataclass(frozen=True)
class Rule:
    """One thing that may follow.

    Args:
        name: what is suggested.
        holds: whether it follows from what was found.
        finding: what was found, with names of :class:`Facts`, or ``percent``, in braces.
        paper: why it fits, by whom.
        measured: what was measured of it here; said, where nothing was.
        line: for the recipe; a section with the keys to set. Empty: there is nothing to set.
    """

    name: str
    holds: Callable[[Facts], bool]
    finding: str
    paper: str
    measured: str
    line: str = ""


MISSING = "{percent:.3g} % of the (client, class) pairs have no sample"
FAR = "clients are {beyond:.3g} times as far from the prior as by chance"
RULES = (
    Rule(
        "fedavg",
        lambda facts: not facts.skewed,
        "clients are {beyond:.2g} times as far from the prior as by chance",
        "there is hardly any label skew to correct for; where it is weak FedShift's table 4 has FedAvg at 91.27 and "
        "FedShift at 91.26 (CIFAR-10, Dirichlet 0.5)",
        "nothing without skew",
        "method_args: {method: fedavg}",
    ),
    Rule(
        "fedlc",
        lambda facts: facts.skewed,
        FAR,
        "lowers the logits of classes that a client has few or no samples of; FedLC's table 1 has it at 65.91 and "
        "FedAvg at 48.07 (CIFAR-10, Dirichlet 0.1). It gives no tau",
        "with tau 5 71.18 ± 0.33 at P10C2, FedAvg 63.18 ± 1.76; 84.11 ± 2.25 with Dirichlet 0.1, FedAvg 83.13 ± 2.56; "
        "tau 1 was below tau 5 in both (65.50 ± 0.64, 83.47 ± 2.54)",
        "method_args: {method: fedlc, tau: 5.0}",
    ),
    Rule(
        "fedlc, missing: one",
        lambda facts: facts.lacking,
        MISSING,
        "FedLC leaves open what the margin of a missing class is; masked, its proxy gets no gradient at all",
        "masked it fell below FedAvg, seed 0, tau 1: 57.60 at P10C2, as one sample 66.24, FedAvg 64.57; 77.13 with "
        "Dirichlet 0.1, as one sample 81.51, FedAvg 81.03",
        "method_args: {method: fedlc, tau: 5.0, missing: one}",
    ),
    Rule(
        "momentum on the server",
        lambda facts: facts.skewed,
        FAR,
        "steps along the mean of the updates with a memory (FedOpt, Reddi et al. 2021), with any method; FedLC's "
        "table 1 has FedOpt at 51.89 and FedAvg at 48.07 (CIFAR-10, Dirichlet 0.1)",
        "10 rounds with FedAvg: 63.48 ± 4.81 at P10C2, 53.53 ± 3.37 without; 80.92 ± 2.47 with Dirichlet 0.1, 78.49 ± "
        "3.35 without; with fedlc, tau 5: 68.89 ± 1.43 and 82.11 ± 2.21",
        "train_args: {federated_optimizer: FedOpt, server_momentum: 0.5}",
    ),
    Rule(
        "fedshift, smoothing",
        lambda facts: facts.skewed and not facts.mostly_lacking,
        f"{FAR}, and {MISSING}",
        "shifts logits by ln(P_k / P), with a histogram that is smoothed by a constant which is not given; FedShift's "
        "table 1 has it at 83.52 and FedAvg at 78.94 (CIFAR-10, Dirichlet 0.1)",
        "smoothing by one sample: 84.36 ± 1.87 with Dirichlet 0.1, FedAvg 83.13 ± 2.56; accuracy on clients' own test "
        "splits falls, to 87.22 ± 2.23 from 94.67 ± 1.12",
        "method_args: {method: fedshift, smoothing: 1.0}",
    ),
    Rule(
        "fedshift, smoothing_fraction",
        lambda facts: facts.mostly_lacking,
        MISSING,
        "FedShift smooths its histogram by a constant that is not given; one sample all but masks missing classes, a "
        "tenth of the client's samples does not",
        "at P10C2 it learns faster and gets as far: 61.51 ± 2.93 after 10 rounds, by one sample 54.09 ± 5.12, FedAvg "
        "53.53 ± 3.37; after 20 65.91 ± 4.09, 65.65 ± 3.27 and 63.18 ± 1.76",
        "method_args: {method: fedshift, smoothing_fraction: 0.1}",
    ),
    Rule(
        "fedrs",
        lambda facts: facts.lacking and facts.sizes < UNEVEN,
        MISSING,
        "restricts the softmax of missing classes, so that local training does not push their proxies away; FedRS's "
        "table 1 has alpha 0.5 at 70.8 and FedAvg at 55.9 (CIFAR-10, 100 clients of about 2 classes)",
        "64.60 ± 1.91 at P10C2, FedAvg 63.18 ± 1.76, which is within what seeds differ by; alpha 0.5 was above 0.1 and "
        "0.9 (seed 0)",
        "method_args: {method: fedrs, alpha: 0.5}",
    ),
    Rule(
        "fedrs, map, fedphp: equal weights",
        lambda facts: facts.lacking and facts.sizes >= UNEVEN,
        "the largest client has {sizes:.3g} times the samples of the smallest",
        "FedRS's algorithm 1 and MAP's average uploads with equal weights, so that small clients count as large ones; "
        "this speaks against them here",
        "with Dirichlet 0.1 and sizes up to 1 : 17 they fall short of FedAvg (83.13 ± 2.56): 81.62 ± 2.92, "
        "77.57 ± 3.01 and 80.68 ± 1.35",
    ),
    Rule(
        "fedrs, min_count",
        lambda facts: facts.skewed and facts.rare > 0,
        "{rare} of the {pairs} (client, class) pairs that are held have a single sample",
        "FedRS's section 5.3 counts a class with fewer than 2 samples as missing on FEMNIST, and with fewer than 20 on "
        "Shakespeare; MAP has the key too",
        "nothing of min_count",
        "method_args: {method: fedrs, min_count: 2}",
    ),
    Rule(
        "fedmr",
        lambda facts: facts.mostly_lacking,
        MISSING,
        "is made for clients that hold a few classes each: it keeps features from collapsing and from spreading over "
        "missing classes; FedMR's table 1 has it at 74.97 and FedAvg at 67.33 (Fashion-MNIST, P10C2, ResNet18)",
        "not reproduced with a small network: 61.14 ± 4.30 at P10C2, FedAvg 63.18 ± 1.76",
        "method_args: {method: fedmr, mu1: 0.01, mu2: 1.0e-4}",
    ),
    Rule(
        "proxy_aggregation",
        lambda facts: facts.lacking,
        MISSING,
        "a classifier's row can be averaged by the samples of its class, so that clients without the class do not "
        "count (FedRS, section 4.4, without numbers); across silos each sends its exact class counts",
        "with FedAvg, seed 0 alone: 61.89 at P10C2, 64.57 without; 82.45 with Dirichlet 0.1, 81.03 without",
        "train_args: {proxy_aggregation: class}",
    ),
    Rule(
        "map",
        lambda facts: facts.lacking,
        MISSING,
        "gives each client a model of its own for its own classes beside the global one; its paper's tables are not "
        "at hand",
        "on clients' own test splits no gain over FedAvg's local models: 99.00 ± 0.16 beside 99.20 ± 0.28 at P10C2, "
        "93.65 ± 1.40 beside 94.67 ± 1.12 with Dirichlet 0.1",
        "method_args: {method: map, alpha: 0.5, lam: 0.05}",
    ),
)


@dataclass(frozen=True)
class Suggestion:
    """A rule that holds, with what was found."""

    name: str
    finding: str
    paper: str
    measured: str
    line: str


def suggestions(facts: Facts) -> list[Suggestion]:
    """What follows from these facts, in the order of :data:`RULES`.

    >>> [one.name for one in suggestions(Facts(missing=0.0, beyond=1.1, sizes=2.0, rare=0, pairs=30))]
    ['fedavg']
    """
    return [
        Suggestion(
            rule.name,
            rule.finding.format(**vars(facts), percent=100 * facts.missing),
            rule.paper,
            rule.measured,
            rule.line,
        )
        for rule in RULES
        if rule.holds(facts)
    ]
