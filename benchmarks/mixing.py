"""Time of each method and optimiser at a client, relative to FedAvg, in our training loop.

    python benchmarks/mixing.py            # about 7 minutes on one core; prints a Markdown table
    python benchmarks/mixing.py --quick    # fewer repetitions
    python benchmarks/mixing.py --tiny     # seconds: only a check, on digits; the numbers mean nothing

Setting: Fashion-MNIST, P10C2, the CNN of FedLC's table 8, one local epoch, batches of 64, SGD 0.01 with momentum 0.9
(Mime: none), one torch thread, default settings. The last rows use a ResNet18, batches of 128 and 512 samples per
client. Two clients complete a first round, which creates private states and shared tensors. Then the clients' second
rounds are measured in one process; the cases alternate. The table shows medians of CPU seconds and of paired ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from fl_labelskew_plugins.engine.local import LocalTrainer
    from fl_labelskew_plugins.tensors import Weights

RECIPES = Path(__file__).parent.parent / "recipes"
RUNNING = "fedmr, prototypes: running"
LARGE = ["model_args.model=resnet18", "train_args.batch_size=128"]


class Case(NamedTuple):
    """The clients of one case after their first round."""

    local: LocalTrainer
    start: Weights
    shared: Mapping[str, Tensor]
    states: Mapping[int, Mapping[str, Tensor]]

    def second_round(self, client: int, clock: Callable[[], float] = time.process_time) -> float:
        """Measure the seconds of a client's second round."""
        from fl_labelskew_plugins.engine.turn import fit

        before, state = clock(), dict(self.states[client])
        fit(self.local, client, 1, self.start, shared=self.shared, state=state, times_selected=2)
        return clock() - before

    def steps(self, client: int) -> int:
        """The number of steps in a round."""
        from fl_labelskew_plugins.engine.turn import Turn

        return Turn(self.local, client, 1, times_selected=2).batches()[1]


def all_cases() -> dict[str, list[str]]:
    """Every method and optimiser, with the overrides of the recipe."""
    from fl_labelskew_registry import catalog

    cases = {entry.name: [f"method_args.method={entry.name}"] for entry in catalog.entries("methods")}
    cases[RUNNING] = [*cases["fedmr"], "method_args.prototypes=running"]
    cases |= {entry.name: [f"train_args.federated_optimizer={entry.name}"] for entry in catalog.entries("optimizers")}
    cases["Mime"].append("train_args.momentum=0.0")
    return cases


def prepare(
    path: Path, common: Sequence[str], cases: Mapping[str, Sequence[str]], samples: int | None = None
) -> dict[str, Case]:
    """Run the first round of two clients in each case; ``samples``: maximum per client."""
    from fl_labelskew_registry import Contribution

    from fl_labelskew_plugins.engine.server import Server
    from fl_labelskew_plugins.engine.turn import Turn, fit
    from fl_labelskew_plugins.recipe import parse
    from fl_labelskew_plugins.runs import session

    built = session.build(parse.load(path, common))
    base, start = built.trainer, built.start
    if samples is not None:
        subsets = {k: index[:: max(1, len(index) // samples)][:samples] for k, index in base.indices.items()}
        base = replace(base, indices=subsets)
    prepared = {}
    for case, overrides in cases.items():
        recipe = parse.load(path, [*common, *overrides])
        method, optimizer = recipe.method, recipe.optimizer
        settings = session.local_settings(recipe.train, recipe.device)
        local = replace(base, method=method, optimizer=optimizer, settings=settings)
        if method.uses("shared_modules"):  # the network contains modules of the method
            own = session.build(recipe)
            local, start = replace(own.trainer, indices=base.indices), own.start
        else:
            start = built.start
        server = Server(local.model, method=method, federation=built.federation, weights=start, optimizer=optimizer)
        server.open([Contribution(k, method.opening(Turn(local, k).view)) for k in range(10)])
        results = [(k, fit(local, k, 0, start, shared=server.shared, times_selected=1)) for k in range(2)]
        server.run_round([0, 1], built.sizes[:2], iter(results))
        prepared[case] = Case(local, start, dict(server.shared), {k: result.state for k, result in results})
    return prepared


def measure(prepared: Mapping[str, Case], repetitions: int) -> dict[str, list[float]]:
    """Measure the CPU seconds of the clients' second rounds in each case."""
    seconds: dict[str, list[float]] = {case: [] for case in prepared}
    for repetition in range(repetitions):
        for case, clients in prepared.items():
            seconds[case].append(clients.second_round(repetition % 2))
    return seconds


def main() -> None:
    """Parse the options, measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="a check on digits, in seconds")
    options = parser.parse_args()
    path = RECIPES / ("quickstart.yaml" if options.tiny else "small/fedavg_fmnist.yaml")
    common = ["method_args.method=fedavg", "train_args.epochs=1", "device_args.threads=1"]
    cases = all_cases()
    large = {name: cases[name] for name in ("FedAvg", "fedmr", RUNNING)}
    samples = 16 if options.tiny else 512
    repetitions = 2 if options.tiny else 4 if options.quick else 12
    print("| | CPU s of a client's round | time / FedAvg |\n|---|---|---|")
    for prefix, seconds in (
        ("", measure(prepare(path, common, cases), repetitions)),
        ("ResNet18: ", measure(prepare(path, [*common, *LARGE], large, samples), max(2, repetitions // 3))),
    ):
        for case, row in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(row, seconds["FedAvg"], strict=True))
            print(f"| {prefix}{case} | {statistics.median(row):.3f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
