"""Methods to try on data of a given skew: those measured on similar data, or three to compare.

The evidence is a table of docs/results.md: Fashion-MNIST, 10 clients, 10 rounds, 3 seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_labelskew_plugins.surveys import measured
from fl_labelskew_plugins.surveys.skew import Skew

Settings = Mapping[str, Mapping[str, Any]]
ALIKE = 1.5  # value of `Skew.beyond_chance` up to which there is hardly any label skew
MOMENTUM = {"federated_optimizer": "FedOpt", "server_momentum": 0.5}
TAU5 = {"method": "fedlc", "tau": 5.0}
FEDAVG_ARGS = {"federated_optimizer": "FedAvg"}
FEDAVG = ("fedavg", "FedAvg")


def _settings(method_args: Mapping[str, Any], train_args: Mapping[str, Any] | None = None) -> Settings:
    return {"method_args": method_args, "train_args": train_args or FEDAVG_ARGS}


METHODS: dict[str, tuple[tuple[str, str], Settings]] = {
    "fedavg": (FEDAVG, _settings({"method": "fedavg"})),
    "fedlc-tau5": (("fedlc, tau 5", "FedAvg"), _settings(TAU5)),
    "fedlc-tau5+momentum": (("fedlc, tau 5", "FedOpt, momentum 0.5"), _settings(TAU5, MOMENTUM)),
    "momentum": (("fedavg", "FedOpt, momentum 0.5"), _settings({"method": "fedavg"}, MOMENTUM)),
    "fedlmd-tf": (("fedlmd, uniform", "FedAvg"), _settings({"method": "fedlmd", "teacher": "uniform"})),
    "ccvr": (("ccvr", "FedAvg"), _settings({"method": "ccvr"})),
    "fedetf": (("fedetf", "FedAvg"), _settings({"method": "fedetf"})),
    "fedshift": (("fedshift", "FedAvg"), {}),
}
"""Rows of docs/results.md and settings: FedAvg, and methods above it with every seed in both situations.

Combinations that were not above their parts are omitted. FedShift's settings depend on the situation.
"""


@dataclass(frozen=True)
class Situation:
    """Data on which methods were measured: a column of docs/results.md."""

    name: str
    about: str
    clients: int
    missing: float
    sizes: float
    fedshift: Mapping[str, Any]


SITUATIONS = (
    Situation("P10C2", "10 clients of 2 classes each", 10, 0.8, 2.2, {"smoothing_fraction": 0.1}),
    Situation("Dirichlet 0.1", "10 clients, 32 to 39 % missing pairs", 10, 0.355, 16.0, {"smoothing": 1.0}),
)


@dataclass(frozen=True)
class Suggestion:
    """A method to try: with ``accuracy``, in %, and ``difference`` from FedAvg, in points; or with a ``reason``."""

    name: str
    settings: Settings
    accuracy: str = ""
    difference: float | None = None
    reason: str = ""


COMPARED = (
    Suggestion("fedavg", _settings({"method": "fedavg"}), reason="the baseline"),
    Suggestion(
        "fedlc",
        _settings({"method": "fedlc"}),
        reason="tau 1; sends nothing but weights; 65.91, FedAvg 48.07 in FedLC's table 1 (CIFAR-10, Dirichlet 0.1)",
    ),
    Suggestion(
        "fedshift",
        _settings({"method": "fedshift"}),
        reason="sends class counts once; 83.52, FedAvg 78.94 in FedShift's table 1 (CIFAR-10, Dirichlet 0.1)",
    ),
)
"""Suggestions without evidence: the baseline, and two logit calibrations. They take no time, and neither was below
FedAvg in any measured situation."""


def evidence(skew: Skew) -> Situation | None:
    """The measured situation that is similar to the data (docs/survey.md), if any."""
    if skew.beyond_chance <= ALIKE:
        return None
    clients, sizes = int((skew.samples > 0).sum()), skew.size_ratio
    for situation in SITUATIONS:
        near = max(clients / situation.clients, situation.clients / clients) <= 2
        alike = max(sizes / situation.sizes, situation.sizes / sizes) <= 3
        if near and alike and abs(skew.missing_pairs - situation.missing) <= 0.15:
            return situation
    return None


def suggestions(situation: Situation | None) -> Sequence[Suggestion]:
    """Methods measured in a situation, ranked by accuracy; without one, :data:`COMPARED`.

    >>> [(one.name, one.difference) for one in suggestions(SITUATIONS[1])][:2]
    [('ccvr', 4.57), ('fedlc-tau5+momentum', 3.62)]
    """
    if situation is None:
        return COMPARED
    cells = measured.by_optimizer(situation.name)
    accuracy = {row: float(cell.split()[0]) for row, cell in cells.items()}
    ranked = [
        Suggestion(
            name,
            settings or _settings({"method": name, **situation.fedshift}),
            cells[row],
            round(accuracy[row] - accuracy[FEDAVG], 2),
        )
        for name, (row, settings) in METHODS.items()
    ]
    return sorted(ranked, key=lambda suggestion: -(suggestion.difference or 0))


def explained(skew: Skew, situation: Situation | None) -> str:
    """Describe the evidence."""
    clients, missing = int((skew.samples > 0).sum()), 100 * skew.missing_pairs
    here = f"{clients} clients, {missing:.3g} % missing pairs, largest client {skew.size_ratio:.2g} times the smallest"
    if situation is not None:
        similar = f"{situation.about}, largest client {situation.sizes:.2g} times the smallest"
        return (
            f"These data ({here}) are similar to {situation.name} ({similar}). For {situation.name}, methods were "
            "measured on Fashion-MNIST with 10 rounds and 3 seeds (docs/results.md). Accuracy in %, ranked; other "
            "data may give another order."
        )
    reason = "There is hardly any label skew" if skew.beyond_chance <= ALIKE else "No evidence for this situation"
    return f"{reason} ({here}); compare these three:"


def comparison(base: str, overrides: Mapping[str, Any], methods: Sequence[Suggestion]) -> dict[str, Any]:
    """Content of a sweep's file that runs these methods with 3 seeds each."""
    grid = [{one.name: dict(one.settings) for one in methods}, {"common_args.random_seed": [0, 1, 2]}]
    return {"base": base, **({"set": dict(overrides)} if overrides else {}), "grid": grid}
