"""What each method and each optimiser costs a client beside FedAvg, in our own training loop.

    python benchmarks/mixing.py            # about 6 minutes on one core; prints a Markdown table
    python benchmarks/mixing.py --quick    # fewer repetitions
    python benchmarks/mixing.py --tiny     # seconds: that it works; on digits, numbers say nothing

The work: Fashion-MNIST, P10C2, the CNN of FedLC's table 8, one local epoch, batches of 64, SGD 0.01 with momentum 0.9
(Mime: none), one torch thread, defaults. Two clients play a first round, so that private state and what the server
shares are there; then the clients' second rounds are taken in turn in one process, and the table has medians of CPU
seconds and of paired ratios.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

RECIPES = Path(__file__).parent.parent / "recipes"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="a try on digits, in seconds")
    options = parser.parse_args()
    path = RECIPES / ("quickstart.yaml" if options.tiny else "small/fedavg_fmnist.yaml")
    common = ["method_args.method=fedavg", "train_args.epochs=1", "device_args.threads=1"]

    from fl_labelskew_registry import Contribution, catalog

    from fl_labelskew_plugins.engine.local import LocalTrainer
    from fl_labelskew_plugins.engine.server import Server
    from fl_labelskew_plugins.engine.turn import Turn, fit
    from fl_labelskew_plugins.recipe import parse
    from fl_labelskew_plugins.runs import session

    made = session.build(parse.load(path, common))
    start = made.start

    def choose(override: str) -> LocalTrainer:
        overrides = [*common, override, *(["train_args.momentum=0.0"] if override.endswith("=Mime") else [])]
        asked = parse.load(path, overrides)
        settings = session.local_settings(asked)
        return replace(made.trainer, method=asked.method, optimizer=asked.optimizer, settings=settings)

    def first_round(local: LocalTrainer) -> tuple[dict[str, object], dict[int, object]]:
        openings = [Contribution(k, local.method.opening(Turn(local, k).view)) for k in range(10)]
        server = Server(
            local.model,
            method=local.method,
            federation=made.federation,
            weights=start,
            optimizer=local.optimizer,
        )
        server.shared = local.method.open(openings)
        results = [(k, fit(local, k, 0, start, shared=server.shared, times_selected=1)) for k in range(2)]
        server.run_round([0, 1], made.sizes[:2], iter(results))
        return dict(server.shared), {k: result.state for k, result in results}

    cases = [f"method_args.method={entry.name}" for entry in catalog.entries("methods")]
    cases += [f"train_args.federated_optimizer={entry.name}" for entry in catalog.entries("optimizers")]
    ready = {}
    for case in cases:
        ready[case] = first_round(choose(case))
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for repetition in range(2 if options.tiny else 4 if options.quick else 12):
        client = repetition % 2
        for case in cases:
            local = choose(case)
            shared, states = ready[case]
            before = time.process_time()
            fit(local, client, 1, start, shared=shared, state=dict(states[client]), times_selected=2)
            seconds[case].append(time.process_time() - before)
    base = seconds["train_args.federated_optimizer=FedAvg"]
    print("| | CPU s of a client's round | beside FedAvg |\n|---|---|---|")
    for case, mine in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(mine, base, strict=True))
        print(f"| {case.partition('=')[2]} | {statistics.median(mine):.3f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
