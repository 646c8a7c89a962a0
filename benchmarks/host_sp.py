"""Seconds and memory of a round: our single-process runtime and FedML's own FedAvg with the same work.

    python benchmarks/host_sp.py            # about 15 minutes on one core; prints Markdown tables
    python benchmarks/host_sp.py --quick    # a few minutes, fewer repetitions
    python benchmarks/host_sp.py --tiny     # seconds: that it works; on digits; no real numbers

The work: Fashion-MNIST, P10C2, the CNN of FedLC's table 8, one local epoch, batches of 64, SGD 0.01 without momentum
(the host ignores it), one torch thread. The host gets ready-made lists of float batches, its fastest case. Variants
run alternately as processes of their own, so that a slow spell of the machine hits all of them; ratios are of medians.
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
COPIED = "copied"
"""The stock host hands out live weights: in its round 0 each client starts from the one before it; a copy mends it."""
NEVER = ["validation_args.frequency_of_the_test=0", "validation_args.personalised=false"]


def loaded(rounds: int, overrides: list[str], tiny: bool) -> Recipe:
    """The recipe to measure."""
    from fl_labelskew_plugins.recipe import parse

    path, more = TINY if tiny else FASHION
    return parse.load(path, [*more, *COMMON, f"train_args.comm_round={rounds}", *overrides])


def ours(rounds: int, overrides: list[str], tiny: bool) -> dict[str, object]:
    """Our runtime: CPU and wall seconds of every round but the first."""
    begun = time.perf_counter()
    import fedml  # noqa: F401  # the host's own start-up, taken off below

    imported = time.perf_counter()
    import fl_labelskew_registry as registry

    from fl_labelskew_plugins.machine.files import read_lines
    from fl_labelskew_plugins.runs.folder import RunFolder
    from fl_labelskew_plugins.runs.progress import Progress
    from fl_labelskew_plugins.runs.record import Record
    from fl_labelskew_plugins.runtimes.options import RunOptions

    class Clock(Progress):
        def __init__(self) -> None:
            self.marks: list[tuple[float, float]] = []
            self.first = 0.0

        def client(self, round: int, number: int, clients: int, name: str = "") -> None:
            self.first = self.first or time.perf_counter()

        def round(self, line: dict[str, object], seconds: float) -> None:
            self.marks.append((time.process_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        parse, clock = loaded(rounds, overrides, tiny), Clock()
        runtime = registry.load("runtimes", parse.comm.backend)(
            parse, RunOptions(quiet=True), RunFolder(Path(folder)), clock
        )
        session = runtime.session()
        record = Record(session, runtime.folder, clock, resume=False)
        runtime.run(session, record)
        accuracy = read_lines(record.folder.metrics)[-1].get("accuracy")
    untested = "validation_args.frequency_of_the_test=0" in overrides  # except the last round
    return {
        **_periods(clock.marks[: rounds - 1] if untested else clock.marks),
        "startup": clock.first - imported,
        "import_fedml": imported - begun,
        "accuracy": accuracy,
    }


def stock(rounds: int, overrides: list[str], tiny: bool) -> dict[str, object]:
    """The stock host's FedAvgAPI with its own trainer on the same clients, network and start weights."""
    import torch
    from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

    from fl_labelskew_plugins.engine.samples import ClientBatches, Samples, Streamed
    from fl_labelskew_plugins.host import start as host
    from fl_labelskew_plugins.runs import session

    marks: list[tuple[float, float]] = []

    class Stock(FedAvgAPI):  # type: ignore[misc]
        def _client_sampling(self, *arguments: object) -> object:
            marks.append((time.process_time(), time.perf_counter()))
            return super()._client_sampling(*arguments)

    made = session.build(loaded(rounds, [], tiny))
    with tempfile.TemporaryDirectory() as folder:
        args = host.start(made.recipe, Path(folder) / "fedml.yaml")
    if overrides:
        args.frequency_of_the_test = 10**9
    args.enable_wandb = False
    local, size = made.trainer, made.recipe.train.batch_size

    def batches(samples: Samples | Streamed, index: torch.Tensor | None = None) -> list[object]:
        return list(ClientBatches(samples, torch.arange(len(samples.y)) if index is None else index, size))

    data = [
        sum(made.sizes),
        len(local.test.y),
        batches(local.train),
        batches(local.test),
        dict(enumerate(made.sizes)),
        {k: batches(local.train, index) for k, index in local.indices.items()},
        {k: batches(local.test, index) for k, index in local.test_indices.items()},
        local.federation.num_classes,
    ]
    model = copy.deepcopy(made.trainer.model)
    api = Stock(args, torch.device("cpu"), data, model)
    if COPIED in overrides:
        live = api.model_trainer.get_model_params
        api.model_trainer.get_model_params = lambda: {k: v.clone() for k, v in live().items()}
    api.train()
    made.trainer.model.load_state_dict(model.state_dict())
    logits, labels = made.trainer.predict()
    return {**_periods(marks), "accuracy": float((logits.argmax(1) == labels).float().mean())}


def _periods(marks: list[tuple[float, float]]) -> dict[str, object]:
    pairs = list(itertools.pairwise(marks))
    return {
        "cpu": statistics.median(b[0] - a[0] for a, b in pairs),
        "wall": statistics.median(b[1] - a[1] for a, b in pairs),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


VARIANTS = {
    "host FedAvg, test every round": (stock, []),
    "ours, test every round": (ours, []),
    "ours, test every round, no personalised measure": (ours, ["validation_args.personalised=false"]),
    "host FedAvg, no test": (stock, NEVER),
    "host FedAvg, no test, start weights copied": (stock, [*NEVER, COPIED]),
    "ours, no test": (ours, NEVER),
    "ours, no test, channels_last: false": (ours, [*NEVER, "device_args.channels_last=false"]),
    "ours, no test, bf16": (ours, [*NEVER, "device_args.precision=bf16"]),
}
MANY = [
    "method_args.method=map",
    "train_args.client_num_in_total=1000",
    "train_args.client_num_per_round=1000",
    "tracking_args.checkpoint_every=1",
]
"""MAP with 1,000 private models."""


def main() -> None:
    """Run the variants alternately and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="a try on digits, in seconds")
    parser.add_argument("--variant", choices=[*VARIANTS, "many"], help="measure one alone, print JSON")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of a variant")
    options = parser.parse_args()
    if options.rounds < 3:  # the first and the last one do not count
        parser.error("--rounds: use 3 or more")
    if options.variant:
        print(json.dumps(measured(options.variant, options)))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for turn in range(1 if options.quick or options.tiny else 3):
        for name in VARIANTS:
            runs[name].append((measured if options.tiny else _child)(name, options))
            print(f"turn {turn + 1}: {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
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
        f"\nstart-up to the first round: {start['startup']:.2f} s beyond `import fedml`, which takes "
        f"{start['import_fedml']:.1f} s\n"
    )
    many = (measured if options.tiny else _child)("many", options)
    clients = "20" if options.tiny else "1,000"
    print(f"MAP with {clients} clients: {many['peak_mb']:.0f} MB peak, {many['wall']:.1f} s per round")


def measured(variant: str, options: argparse.Namespace) -> dict[str, object]:
    """The numbers of one variant, in this process."""
    function, overrides = {**VARIANTS, "many": (ours, MANY)}[variant]
    if options.tiny:
        overrides = [override.replace("=1000", "=20") for override in overrides]
    return function(options.rounds, list(overrides), options.tiny)


def _child(variant: str, options: argparse.Namespace) -> dict[str, object]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--variant", variant, "--rounds", str(options.rounds)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
