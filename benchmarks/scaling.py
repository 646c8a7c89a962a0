"""Seconds of a round across processes: one process, and MPI with 1 and 2 workers; silos, and only their training.

What a server over MPI holds, sends and receives of large uploads.

    python benchmarks/scaling.py            # about 13 minutes on two cores that have nothing else to do
    python benchmarks/scaling.py --quick    # about 5 minutes, fewer repetitions
    python benchmarks/scaling.py --part mpi # one of the parts: mpi, silos, uploads
    python benchmarks/scaling.py --tiny     # a minute: that it works; digits, a worker, a silo; no real numbers

It prints Markdown tables. Every run is the command that a user types, one torch thread a process and without FedML,
each variant in turn, so that a slow spell of the machine hits all of them. Rounds are those of ``timings.jsonl`` but
the first; CPU seconds are those of all processes of a run. *Others* is what the rest of the machine computed meanwhile,
in cores: wall times mean little where it is not about 0, so that quiet rounds alone count where there are any.

MPI: Fashion-MNIST, 40 clients of 2 classes, 10 a round, the CNN of FedLC's table 8, one local epoch, batches of 64, a
test of the global model and of each client's own every round.

Uploads: ResNet18 (45 MB), 8, 16 and 32 of 32 clients a round, 4 workers, 800 images of 8 by 8 in all, dealt by a
Dirichlet distribution, one batch for each client, no test. *Memory* is the most that the server's process held, pages
of files included, *on disk* the most that waited there; bytes of a round are those of the loopback interface, over
which MPI is made to send all (what else uses it counts too).

Silos: ResNet18 (45 MB), 5 silos of 16 images of 8 by 8, one epoch in one batch, no test. Six processes share the cores,
so a round cannot be shorter than the five trainings that the cores have to do: one client's training, measured alone in
a process with one thread, times 5, divided by the cores (at most 5). *Beyond training* is the round without that; what
the silos spend on decoding, checking and copying 45 MB, and the server on the mean of five models, is in it. Without
digests: ``comm_args.audit_digests: false``, nothing is hashed for the audit log.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

RECIPES = Path(__file__).parent.parent / "recipes"
MPI = [
    "train_args.client_num_in_total=40",
    "train_args.client_num_per_round=10",
    "device_args.threads=1",
    "tracking_args.checkpoint_every=1000",
]
VARIANTS = {
    "sp": ["comm_args.backend=sp"],
    "MPI, 1 worker": ["comm_args.backend=MPI", "comm_args.workers=1"],
    "MPI, 2 workers": ["comm_args.backend=MPI", "comm_args.workers=2"],
}
SILOS = """\
common_args: {{training_type: cross_silo}}
data_args: {{dataset: npz, data_cache_dir: {data}}}
partition_args: {{partition_method: iid}}
model_args: {{model: resnet18}}
train_args: {{client_num_in_total: {silos}, comm_round: {rounds}, batch_size: 64}}
method_args: {{method: fedavg}}
validation_args: {{frequency_of_the_test: 0, personalised: false}}
device_args: {{threads: 1}}
comm_args: {{backend: GRPC, certs: {certs}, audit_digests: {digests}}}
tracking_args: {{checkpoint_every: 1000}}
"""
UPLOADS = """\
data_args: {{dataset: npz, data_cache_dir: {data}}}
partition_args: {{partition_method: dirichlet, beta: 0.5, min_samples: 4}}
model_args: {{model: {model}}}
train_args: {{client_num_in_total: 32, client_num_per_round: {clients}, comm_round: {rounds}, batch_size: 1000}}
method_args: {{method: fedavg}}
validation_args: {{frequency_of_the_test: 0, personalised: false}}
device_args: {{threads: 1}}
comm_args: {{backend: MPI, workers: {workers}}}
tracking_args: {{checkpoint_every: 1000}}
"""
QUIET = 0.1
"""Cores that others may use in a round that counts as quiet."""
CORES = len(os.sched_getaffinity(0))


class Round(NamedTuple):
    """Wall and CPU seconds of a measured round, and the cores that others used meanwhile."""

    wall: float
    cpu: float
    others: float


def median(rounds: list[Round]) -> tuple[float, float, str]:
    """Wall and CPU seconds of a round, and the others in words; of the quiet rounds, if any."""
    counting = [round for round in rounds if round.others <= QUIET] or rounds
    wall, cpu, others = map(statistics.median, zip(*counting, strict=True))
    return wall, cpu, f"{others:.2f} in {len(counting)} of {len(rounds)} rounds"


def measured(
    command: list[str],
    folder: Path,
    rounds: int,
    watch: Callable[[list[psutil.Process]], None] = lambda _: None,
    **more: str,
) -> list[Round]:
    """Run a command that writes a run into ``folder``; every round but the first.

    ``watch`` looks at its processes; ``more``: variables of its environment.
    """
    begun = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    timings, family = folder / "timings.jsonl", psutil.Process(process.pid)
    marks: list[tuple[float, float, float]] = []  # wall, own CPU and the machine's CPU seconds after each round
    everyone: list[psutil.Process] = []
    while process.poll() is None and len(marks) < rounds:
        time.sleep(0.01)
        done = timings.read_bytes().count(b"\n") if timings.exists() else 0
        if done > len(marks):
            everyone = everyone or [family, *family.children(recursive=True)]
            marks.append((time.monotonic(), sum(map(_cpu, everyone)), _busy()))
        watch(everyone)
    _, error = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nended with exit code {process.returncode}\n{error}")
    seconds = [json.loads(line)["seconds"] for line in timings.read_text().splitlines()]
    measures = []
    for number, (before, after) in enumerate(itertools.pairwise(marks), rounds - len(marks) + 1):
        wall, cpu, busy = (b - a for a, b in zip(before, after, strict=True))
        measures.append(Round(seconds[number], cpu, max(0.0, busy - cpu) / wall))
    print(f"  {time.monotonic() - begun:.0f} s: {measures}", file=sys.stderr, flush=True)
    return measures


def _cpu(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _busy() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def run(recipe: Path, folder: Path, overrides: list[str]) -> list[str]:
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "fl_labelskew_plugins.cli.main", "run", str(recipe), "--run-dir", str(folder)]
    return [*command, "--host", "none", "--quiet", *sets]


def mpi(*, quick: bool, tiny: bool) -> None:
    """One process, and 1 and 2 workers."""
    rounds, turns = (3, 1) if tiny else (4, 1) if quick else (8, 3)
    variants = dict(list(VARIANTS.items())[:2]) if tiny else VARIANTS
    recipe = RECIPES / ("quickstart.yaml" if tiny else "small/fedavg_fmnist.yaml")
    more = ["train_args.epochs=10"] if tiny else []  # rounds that are long enough to be seen
    results: dict[str, list[Round]] = {name: [] for name in variants}
    for turn in range(turns):
        for name, overrides in variants.items():
            print(f"turn {turn + 1}: {name}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                out, sets = Path(folder) / "run", [*MPI, f"train_args.comm_round={rounds}", *more, *overrides]
                results[name] += measured(run(recipe, out, sets), out, rounds)
    medians = {name: median(measures) for name, measures in results.items()}
    sp, one = medians["sp"][0], medians["MPI, 1 worker"][0]
    print("\n| runtime | s a round | beside sp | throughput beside 1 worker | CPU s a round | others |")
    print("|---|---|---|---|---|---|")
    for name, (wall, cpu, others) in medians.items():
        print(f"| {name} | {wall:.2f} | {wall / sp:.2f} | {one / wall:.2f} | {cpu:.2f} | {others} |")


def silos(*, quick: bool, tiny: bool) -> None:
    """A round of 5 silos, and only their training; tiny: of one silo, only with TLS."""
    import numpy as np

    rounds, turns = (3, 1) if tiny else (6, 1) if quick else (12, 3)
    number = 1 if tiny else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        y = np.arange(100) % 10
        np.savez(folder / "data.npz", x=rng.integers(0, 256, (100, 8, 8), dtype=np.uint8), y=y)
        command = [sys.executable, "-m", "fl_labelskew_plugins.cli.main"]
        subprocess.run(
            [*command, "certs", "new", "--silos", str(number), "--out", str(folder / "certs")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        recipes = {}
        certificates = {"loopback": "null", "loopback, TLS": str(folder / "certs")}
        for digests, more in (("true", ""), ("false", ", no digests")):
            for kind, certs in certificates.items():
                recipes[kind + more] = folder / f"{kind}{more}.yaml"
                text = SILOS.format(data=folder / "data.npz", silos=number, rounds=rounds, certs=certs, digests=digests)
                recipes[kind + more].write_text(text)
        single = training(recipes["loopback"], number, 2 if tiny else 11)
        if tiny:
            recipes = {"loopback, TLS": recipes["loopback, TLS"]}
        results: dict[str, list[Round]] = {kind: [] for kind in recipes}
        for turn in range(turns):
            for kind, recipe in recipes.items():
                print(f"turn {turn + 1}: {kind}", file=sys.stderr)
                out = folder / f"{kind}-{turn}"
                results[kind] += measured(run(recipe, out, []), out, rounds - 1)  # the last one has a test
    least = single * number / min(number, CORES)
    print(f"\none client's training in one process: {single:.3f} s; {number} on {CORES} cores: {least:.3f} s\n")
    print("| transport | s a round | beyond training | CPU s a round, training taken off | others |")
    print("|---|---|---|---|---|")
    for kind, measures in results.items():
        wall, cpu, others = median(measures)
        print(f"| {kind} | {wall:.2f} | {wall - least:.2f} | {cpu - number * single:.2f} | {others} |")


def uploads(*, quick: bool, tiny: bool) -> None:
    """What the server of an MPI run holds, sends and receives, by the clients of a round."""
    import numpy as np

    rounds, turns, workers = (2, 1, 1) if tiny else (4, 1, 4) if quick else (6, 2, 4)
    numbers = (8,) if tiny else (8, 16, 32)
    results: dict[int, list[Round]] = {clients: [] for clients in numbers}
    memory, disk, sent = (dict.fromkeys(numbers, 0.0) for _ in range(3))
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        y = np.arange(800) % 10
        np.savez(folder / "data.npz", x=rng.integers(0, 256, (800, 8, 8), dtype=np.uint8), y=y)
        for turn, clients in itertools.product(range(turns), numbers):
            print(f"turn {turn + 1}: {clients} clients", file=sys.stderr)
            out, recipe = folder / f"{clients}-{turn}", folder / f"{clients}.yaml"
            what = {"model": "mlp" if tiny else "resnet18", "clients": clients, "workers": workers}
            recipe.write_text(UPLOADS.format(data=folder / "data.npz", rounds=rounds + 1, **what))

            def watch(processes: list[psutil.Process], clients: int = clients, out: Path = out) -> None:
                disk[clients] = max(disk[clients], _on_disk(out, processes))

            before = _loopback()
            command = [*run(recipe, out, []), "--host", "none"]
            results[clients] += measured(command, out, rounds, watch, OMPI_MCA_btl="tcp,self")
            sent[clients] = (_loopback() - before) / (rounds + 1)
            timings = (out / "timings.jsonl").read_text().splitlines()
            memory[clients] = max(memory[clients], *(json.loads(line)["peak_mb"] for line in timings))
    first = median(results[numbers[0]])[0]
    print("\n| clients a round | s a round | ratio | memory, MB | on disk, MB | sent and received, MB | others |")
    print("|---|---|---|---|---|---|---|")
    for clients, measures in results.items():
        wall, _, others = median(measures)
        print(
            f"| {clients} | {wall:.2f} | {wall / first:.2f} | {memory[clients]:.0f} | {disk[clients]:.0f} "
            f"| {sent[clients]:.0f} | {others} |"
        )


def _loopback() -> float:
    """MB that the loopback interface has carried so far."""
    return float(psutil.net_io_counters(pernic=True)["lo"].bytes_sent / 1e6)


def _on_disk(folder: Path, processes: list[psutil.Process]) -> float:
    """MB of files without a name in a folder that these processes have mapped."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if str(folder) in line and line.endswith("(deleted)"):
                    begin, end = line.split()[0].split("-")
                    total += int(end, 16) - int(begin, 16)
    return total / 1e6


def training(recipe: Path, clients: int, repetitions: int) -> float:
    """CPU seconds of one client's round with one thread, in this process."""
    import torch

    from fl_labelskew_plugins.engine.turn import fit
    from fl_labelskew_plugins.recipe import parse as recipes
    from fl_labelskew_plugins.runs import session

    torch.set_num_threads(1)
    made = session.build(recipes.load(recipe))
    times = []
    for number in range(repetitions):
        before = time.process_time()
        fit(made.trainer, number % clients, number, made.start, times_selected=number)
        times.append(time.process_time() - before)
    return statistics.median(times[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="a try with few processes, in a minute")
    parser.add_argument("--part", choices=["mpi", "silos", "uploads"], help="measure one part alone")
    options = parser.parse_args()
    for name, part in (("mpi", mpi), ("silos", silos), ("uploads", uploads)):
        if options.part in (None, name):
            part(quick=options.quick, tiny=options.tiny)


if __name__ == "__main__":
    main()
