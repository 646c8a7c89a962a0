"""Seconds of a round and memory for different numbers of clients; a round selects only a few of them.

    python benchmarks/clients.py            # about 5 minutes on one core; prints Markdown tables
    python benchmarks/clients.py --quick    # about 2 minutes, without 1,000 clients per round
    python benchmarks/clients.py --tiny     # seconds: only a check, in one process; the numbers mean nothing
    python benchmarks/clients.py --picture docs/pictures/clients.png    # also draws the numbers

Setting: synthetic samples in FEMNIST's shape (28 by 28, 62 classes, 10 per client), one local epoch of one batch, one
torch thread, a checkpoint every fifth round, a test only in the last round. The linear network is small (195 kB), so
that the costs of the rounds are visible. *Stateless* means FedLC. *Private states* means SCAFFOLD: each client has a
control variate of 195 kB, and 64 MiB of them stay in memory. Each measurement is a separate process. All rounds except
the first and the last are measured, including checkpoints. *Memory* is the peak of the process, minus its size before
the data were created, and minus the samples and labels.

The second table: a checkpoint after every client has taken part; 10 clients have taken part since the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

CLIENTS, PER_ROUND = (1_000, 10_000, 100_000), (10, 100, 1_000)
TINY, TINY_PER_ROUND = (20, 40), (5,)
ROUNDS = {10: 32, 100: 12, 1_000: 7}
"""Rounds by clients per round; all except two are measured."""
SAMPLES, CLASSES = 10, 62
KINDS = {
    "stateless": {"method_args": {"method": "fedlc"}},
    "private states": {"method_args": {"method": "fedavg"}, "train_args": {"federated_optimizer": "SCAFFOLD"}},
}
Row = dict[str, float]


def measure(kind: str, clients: int, per_round: int, rounds: int, before: int = 0) -> Row:
    """Measure seconds of a round and memory in this process; ``before``: its bytes of memory so far."""
    import numpy as np
    from fl_labelskew_registry import Arrays, Data

    import fl_labelskew_plugins as fl

    def arrays(samples: int, *groups: object) -> Arrays:
        x = rng.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
        return Arrays(x, rng.integers(0, CLASSES, samples), *groups)

    rng = np.random.default_rng(0)
    train = arrays(clients * SAMPLES, np.repeat(np.arange(clients), SAMPLES))
    data = Data(train, arrays(1_000), [str(c) for c in range(CLASSES)])
    data_bytes = sum(array.nbytes for array in (train.x, train.y, train.groups, data.test.x, data.test.y))
    changes = KINDS[kind]
    recipe = {
        "common_args": {"training_type": "simulation", "random_seed": 0},
        "data_args": {"dataset": "digits"},
        "partition_args": {"partition_method": "natural"},
        "model_args": {"model": "logistic"},
        "method_args": changes["method_args"],
        "train_args": {
            "client_num_in_total": clients,
            "client_num_per_round": per_round,
            "comm_round": rounds,
            **changes.get("train_args", {}),
        },
        "validation_args": {"frequency_of_the_test": 0, "personalised": False},
        "device_args": {"threads": 1},
        "comm_args": {"backend": "sp"},
        "tracking_args": {"checkpoint_every": 5},
    }
    start_time, clocks = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for _ in fl.simulate(recipe, Path(folder) / "run", dataset=data):
            clocks.append((time.perf_counter(), time.process_time()))
    (wall, cpu), (wall_end, cpu_end) = clocks[0], clocks[-2]
    return {
        "wall": (wall_end - wall) / (rounds - 2),
        "cpu": (cpu_end - cpu) / (rounds - 2),
        "start": wall - start_time,
        "data_mb": data_bytes / 2**20,
        "memory_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before - data_bytes) / 2**20,
    }


def checkpoint_milliseconds(clients: int) -> float:
    """CPU milliseconds to save a checkpoint after every client has taken part."""
    import torch

    from fl_labelskew_plugins.engine.client_state import StateStore
    from fl_labelskew_plugins.runs.checkpoint import Checkpoint
    from fl_labelskew_plugins.runs.folder import RunFolder

    with tempfile.TemporaryDirectory() as path:
        folder, times = RunFolder(Path(path)), []
        states = StateStore(folder.states)
        for round in range(6):
            for client in range(0, clients, clients // 10 if round else 1):
                states.note(client, round)
                states.select(client)
            states.commit()
            start_time = time.process_time()
            checkpoint = Checkpoint(round + 1, {"w": torch.zeros(10)}, sizes=[SAMPLES] * clients)
            folder.save_checkpoint(checkpoint, states, keep=2)
            times.append(1000 * (time.process_time() - start_time))
    return min(times[2:])


def measure_in_child(kind: str, clients: int, per_round: int) -> Row:
    """Measure in a separate process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", kind, str(clients), str(per_round)]
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    row: Row = json.loads(result.stdout.splitlines()[-1])
    return row


def draw(rows: dict[tuple[str, int, int], Row], path: Path) -> None:
    """Draw seconds of a round and memory over the number of clients."""
    from fl_labelskew_plugins import plots

    picture, (left, right) = plots.figure(11, 4.2, columns=2)
    for number, per_round in enumerate(dict.fromkeys(key[2] for key in rows)):
        for kind, line_style in zip(KINDS, ("-", "--"), strict=True):
            points = [(key[1], row) for key, row in rows.items() if (key[0], key[2]) == (kind, per_round)]
            xs, style = [x for x, _ in points], {"color": plots.COLOURS[number], "ls": line_style, "marker": "o"}
            left.plot(xs, [row["cpu"] for _, row in points], label=f"{per_round:,} per round, {kind}", **style)
            right.plot(xs, [row["memory_mb"] for _, row in points], **style)
    data = {key[1]: row["data_mb"] for key, row in rows.items()}
    right.plot(data.keys(), data.values(), color="0.6", ls=":", marker="o", label="samples and labels")
    left.set(xscale="log", yscale="log", xlabel="number of clients", ylabel="CPU seconds per round")
    right.set(xscale="log", ylim=(0, None), xlabel="number of clients", ylabel="memory without the data, MiB")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    picture.legend(loc="outside lower center", ncols=4, fontsize=8)
    plots.save(picture, path)


def main() -> None:
    """Parse the options, measure, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without 1,000 clients per round")
    parser.add_argument("--tiny", action="store_true", help="a check with few clients, in seconds")
    parser.add_argument("--picture", type=Path, help="PNG file for the curves")
    parser.add_argument("--one", nargs=3, metavar=("KIND", "CLIENTS", "PER_ROUND"), help="measure one case, print JSON")
    options = parser.parse_args()
    if options.one:
        kind, (clients, per_round) = options.one[0], map(int, options.one[1:])
        measure(kind, 10, 5, 3)  # warm-up
        before = psutil.Process().memory_info().rss
        print(json.dumps(measure(kind, clients, per_round, ROUNDS[per_round], before)))
        return
    sizes, numbers = (TINY, TINY_PER_ROUND) if options.tiny else (CLIENTS, PER_ROUND[: 2 if options.quick else 3])
    rows = {}
    header = "| clients per round | clients | | s per round | CPU s per round | memory, MiB | data, MiB "
    print(f"{header}| s to the first round |")
    print("|---|---|---|---|---|---|---|---|")
    for per_round in numbers:
        for kind in KINDS:
            for clients in sizes:
                args = kind, clients, per_round
                row = measure(*args, 4) if options.tiny else measure_in_child(*args)
                rows[kind, clients, per_round] = row
                print(
                    f"| {per_round:,} | {clients:,} | {kind} | {row['wall']:.3f} | {row['cpu']:.3f} "
                    f"| {row['memory_mb']:.0f} | {row['data_mb']:.0f} | {row['start']:.1f} |",
                    flush=True,
                )
    print("\n| clients (all have taken part) | CPU ms per checkpoint |\n|---|---|")
    for clients in sizes:
        print(f"| {clients:,} | {checkpoint_milliseconds(clients):.1f} |")
    if options.picture is not None:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
