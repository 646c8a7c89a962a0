"""Seconds and memory of a round: our single-process runtime, compared with FedML's FedAvg (the host).

    python benchmarks/host_sp.py            # about 15 minutes on one core; prints Markdown tables
    python benchmarks/host_sp.py --quick    # a few minutes, fewer repetitions
    python benchmarks/host_sp.py --tiny     # seconds: only a check, on digits; the numbers mean nothing

Setting: Fashion-MNIST, P10C2, the CNN of FedLC's table 8, one local epoch, batches of 64, SGD 0.01 without momentum
(the host ignores momentum), one torch thread. The host receives ready-made lists of float batches, its fastest case.
The variants alternate in separate processes, so that other load on the machine affects all of them. Ratios are ratios
of medians.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_labelskew_plugins.recipe.model import Recipe

RECIPES = Path(__file__).parent.parent / "recipes"
FASHION = (RECIPES / "small" / "fedavg_fmnist.yaml", [])
TINY = (RECIPES / "quickstart.yaml", ["method_args.method=fedavg", "train_args.epochs=1"])
COMMON = ["train_args.momentum=0.0", "device_args.threads=1", "tracking_args.checkpoint_every=1000"]
COPY_WEIGHTS = "copied"
"""The host gives its weights to clients without a copy. So in round 0 each client starts from the weights that the
previous client has trained. A copy prevents this."""
NO_TEST = ["validation_args.frequency_of_the_test=0", "validation_args.personalised=false"]


def load_recipe(rounds: int, overrides: list[str], tiny: bool) -> Recipe:
    """Load the recipe."""
    from fl_labelskew_plugins.recipe import parse

    path, path_overrides = TINY if tiny else FASHION
    return parse.load(path, [*path_overrides, *COMMON, f"train_args.comm_round={rounds}", *overrides])


def ours(rounds: int, overrides: list[str], tiny: bool) -> dict[str, object]:
    """Measure our runtime: CPU and wall seconds of all rounds except the first."""
    start_time = time.perf_counter()
    import fedml  # noqa: F401  # the host's start-up is subtracted below

    imported = time.perf_counter()
    import fl_labelskew_registry as registry

    from fl_labelskew_plugins.machine.files import read_lines
    from fl_labelskew_plugins.runs.folder import RunFolder
    from fl_labelskew_plugins.runs.progress import Progress
    from fl_labelskew_plugins.runs.record import Record
    from fl_labelskew_plugins.runtimes.options import RunOptions

    class Clock(Progress):
        def __init__(self) -> None:
            self.times: list[tuple[float, float]] = []  # CPU and wall seconds after each round
            self.first = 0.0

        def client(self, round: int, number: int, clients: int, name: str = "") -> None:
            self.first = self.first or time.perf_counter()

        def round(self, line: dict[str, object], seconds: float) -> None:
            self.times.append((time.process_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        recipe, clock = load_recipe(rounds, overrides, tiny), Clock()
        runtime_class = registry.load("runtimes", recipe.comm.backend)
        runtime = runtime_class(recipe, RunOptions(quiet=True), RunFolder(Path(folder)), clock)
        session = runtime.session()
        record = Record(session, runtime.folder, clock, resume=False)
        runtime.run(session, record)
        accuracy = read_lines(record.folder.metrics)[-1].get("accuracy")
    untested = "validation_args.frequency_of_the_test=0" in overrides  # except the last round
    return {
        **_medians(clock.times[: rounds - 1] if untested else clock.times),
        "startup": clock.first - imported,
        "import_fedml": imported - start_time,
        "accuracy": accuracy,
    }


def host(rounds: int, overrides: list[str], tiny: bool) -> dict[str, object]:
    """Measure FedML's FedAvgAPI with its own trainer on the same clients, network and start weights."""
    import torch
    from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

    from fl_labelskew_plugins.engine.samples import ClientBatches, Samples, Streamed
    from fl_labelskew_plugins.host import start as host_start
    from fl_labelskew_plugins.runs import session

    times: list[tuple[float, float]] = []

    class TimedFedAvg(FedAvgAPI):  # type: ignore[misc]
        def _client_sampling(self, *arguments: object) -> object:
            times.append((time.process_time(), time.perf_counter()))
            return super()._client_sampling(*arguments)

    built = session.build(load_recipe(rounds, [], tiny))
    with tempfile.TemporaryDirectory() as folder:
        args = host_start.start(built.recipe, Path(folder) / "fedml.yaml")
    if overrides:
        args.frequency_of_the_test = 10**9
    args.enable_wandb = False
    local, size = built.trainer, built.recipe.train.batch_size

    def batches(samples: Samples | Streamed, index: torch.Tensor | None = None) -> list[object]:
        return list(ClientBatches(samples, torch.arange(len(samples.y)) if index is None else index, size))

    data = [
        sum(built.sizes),
        len(local.test.y),
        batches(local.train),
        batches(local.test),
        dict(enumerate(built.sizes)),
        {k: batches(local.train, index) for k, index in local.indices.items()},
        {k: batches(local.test, index) for k, index in local.test_indices.items()},
        local.federation.num_classes,
    ]
    model = copy.deepcopy(local.model)
    api = TimedFedAvg(args, torch.device("cpu"), data, model)
    if COPY_WEIGHTS in overrides:
        uncopied = api.model_trainer.get_model_params
        api.model_trainer.get_model_params = lambda: {k: v.clone() for k, v in uncopied().items()}
    api.train()
    local.model.load_state_dict(model.state_dict())
    logits, labels = local.predict()
    return {**_medians(times), "accuracy": float((logits.argmax(1) == labels).float().mean())}


def _medians(times: list[tuple[float, float]]) -> dict[str, object]:
    pairs = list(itertools.pairwise(times))
    return {
        "cpu": statistics.median(b[0] - a[0] for a, b in pairs),
        "wall": statistics.median(b[1] - a[1] for a, b in pairs),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


VARIANTS = {
    "host FedAvg, test every round": (host, []),
    "ours, test every round": (ours, []),
    "ours, test every round, no personalised measure": (ours, ["validation_args.personalised=false"]),
    "host FedAvg, no test": (host, NO_TEST),
    "host FedAvg, no test, start weights copied": (host, [*NO_TEST, COPY_WEIGHTS]),
    "ours, no test": (ours, NO_TEST),
    "ours, no test, channels_last: false": (ours, [*NO_TEST, "device_args.channels_last=false"]),
    "ours, no test, bf16": (ours, [*NO_TEST, "device_args.precision=bf16"]),
}
MANY_CLIENTS = [
    "method_args.method=map",
    "train_args.client_num_in_total=1000",
    "train_args.client_num_per_round=1000",
    "tracking_args.checkpoint_every=1",
]
"""MAP with 1,000 private models."""


def main() -> None:
    """Parse the options, run the variants alternately and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="a check on digits, in seconds")
    parser.add_argument(
        "--variant", choices=[*VARIANTS, "many"], metavar="NAME", help="measure only this row (or: many)"
    )
    parser.add_argument("--rounds", type=int, default=4, help="rounds per variant (at least 3)")
    options = parser.parse_args()
    if options.rounds < 3:  # the first and the last round are not measured
        parser.error(f"--rounds {options.rounds}: expected an integer >= 3")
    if options.variant:
        print(json.dumps(measure(options.variant, options)))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for repetition in range(1 if options.quick or options.tiny else 3):
        for name in VARIANTS:
            runs[name].append((measure if options.tiny else measure_in_child)(name, options))
            print(f"repetition {repetition + 1}: {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    print(
        "| variant | CPU s per round | wall s per round | CPU / FedML | peak MB | accuracy |\n|---|---|---|---|---|---|"
    )
    median = {n: {k: statistics.median(r[k] or 0 for r in runs[n]) for k in runs[n][0]} for n in runs}
    for name, row in median.items():
        base = median["host FedAvg, no test" if "no test" in name else "host FedAvg, test every round"]
        print(
            f"| {name} | {row['cpu']:.2f} | {row['wall']:.2f} | {row['cpu'] / base['cpu']:.2f} | {row['peak_mb']:.0f} "
            f"| {100 * row['accuracy']:.2f} % |"
        )
    start = median["ours, test every round"]
    print(
        f"\nstart-up to the first round: {start['startup']:.2f} s in addition to `import fedml`, which takes "
        f"{start['import_fedml']:.1f} s\n"
    )
    many = (measure if options.tiny else measure_in_child)("many", options)
    clients = "20" if options.tiny else "1,000"
    print(f"MAP with {clients} clients: {many['peak_mb']:.0f} MB peak, {many['wall']:.1f} s per round")


def measure(variant: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure one variant in this process."""
    function, overrides = {**VARIANTS, "many": (ours, MANY_CLIENTS)}[variant]
    if options.tiny:
        overrides = [override.replace("=1000", "=20") for override in overrides]
    return function(options.rounds, list(overrides), options.tiny)


def measure_in_child(variant: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure one variant in a separate process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--variant", variant, "--rounds", str(options.rounds)]
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
