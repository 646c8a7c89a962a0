"""Seconds of a round with several processes (MPI workers, silos), and the server's memory and traffic.

    python benchmarks/scaling.py            # about 13 minutes on two idle cores
    python benchmarks/scaling.py --quick    # about 5 minutes, fewer repetitions
    python benchmarks/scaling.py --part mpi # one of the parts: mpi, silos, uploads
    python benchmarks/scaling.py --tiny     # a minute: only a check, with digits, a worker and a silo

It prints Markdown tables. Each run is a ``labelskew run`` command without FedML, with one torch thread per process. The
variants alternate, so that other load on the machine affects all of them. The numbers are those of all rounds in
``timings.jsonl`` except the first. CPU seconds are the sum over all processes of a run. *Others* is the load of all
other processes in cores; wall times are reliable only if it is near 0. If there are rounds with an idle machine, only
these are used.

MPI: Fashion-MNIST, 40 clients of 2 classes, 10 per round, the CNN of FedLC's table 8, one local epoch, batches of 64, a
test of the global model and of each client's model in every round.

Uploads: ResNet18 (45 MB), 8, 16 and 32 of 32 clients per round, 4 workers, 800 images of 8 by 8 in total, partitioned
by a Dirichlet distribution, one batch per client, no test. *Memory* is the peak of the server's process, including
pages of files. *On disk* is the peak of waiting uploads on disk. *Sent and received* are all bytes of the loopback
interface, which MPI must use (and other programs may use).

Silos: ResNet18 (45 MB), 5 silos of 16 images of 8 by 8, one epoch in one batch, no test. Six processes share the cores.
So the minimum time of a round is 5 times the training of one client in a separate process with one thread, divided by
the number of cores (at most 5). *Beyond training* is the round minus this minimum: the silos decode, check and copy
45 MB, and the server averages five models. *No digests*: ``comm_args.audit_digests: false`` (no hashing).
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
MAX_OTHERS = 0.1
"""Maximum load of other processes, in cores, in a round with an idle machine."""
CORES = len(os.sched_getaffinity(0))


class Round(NamedTuple):
    """Wall and CPU seconds of a measured round, and the load of other processes in cores."""

    wall: float
    cpu: float
    others: float


def median(rounds: list[Round]) -> tuple[float, float, str]:
    """Median wall and CPU seconds, and a text with the others' load; only rounds with an idle machine, if any."""
    selected = [round for round in rounds if round.others <= MAX_OTHERS] or rounds
    wall, cpu, others = map(statistics.median, zip(*selected, strict=True))
    return wall, cpu, f"{others:.2f} in {len(selected)} of {len(rounds)} rounds"


def measure(
    command: list[str],
    folder: Path,
    rounds: int,
    watch: Callable[[list[psutil.Process]], None] = lambda _: None,
    **variables: str,
) -> list[Round]:
    """Run a command that writes a run to ``folder``, and measure all rounds except the first.

    ``watch`` is called repeatedly with the processes of the run; ``variables`` are added to their environment.
    """
    start_time = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **variables}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    timings, parent = folder / "timings.jsonl", psutil.Process(process.pid)
    clocks: list[tuple[float, float, float]] = []  # after each round: wall, CPU of the run, CPU of the machine
    processes: list[psutil.Process] = []
    while process.poll() is None and len(clocks) < rounds:
        time.sleep(0.01)
        completed = timings.read_bytes().count(b"\n") if timings.exists() else 0
        if completed > len(clocks):
            processes = processes or [parent, *parent.children(recursive=True)]
            clocks.append((time.monotonic(), sum(map(_cpu_seconds, processes)), _machine_cpu_seconds()))
        watch(processes)
    _, error = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nended with exit code {process.returncode}\n{error}")
    seconds = [json.loads(line)["seconds"] for line in timings.read_text().splitlines()]
    measures = []
    for number, (before, after) in enumerate(itertools.pairwise(clocks), rounds - len(clocks) + 1):
        wall, cpu, machine = (b - a for a, b in zip(before, after, strict=True))
        measures.append(Round(seconds[number], cpu, max(0.0, machine - cpu) / wall))
    print(f"  {time.monotonic() - start_time:.0f} s: {measures}", file=sys.stderr, flush=True)
    return measures


def _cpu_seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _machine_cpu_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def run_command(recipe: Path, folder: Path, overrides: list[str]) -> list[str]:
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "fl_labelskew_plugins.cli.main", "run", str(recipe), "--run-dir", str(folder)]
    return [*command, "--host", "none", "--quiet", *sets]


def mpi(*, quick: bool, tiny: bool) -> None:
    """Measure one process, and 1 and 2 workers."""
    rounds, repetitions = (3, 1) if tiny else (4, 1) if quick else (8, 3)
    variants = dict(list(VARIANTS.items())[:2]) if tiny else VARIANTS
    recipe = RECIPES / ("quickstart.yaml" if tiny else "small/fedavg_fmnist.yaml")
    epochs = ["train_args.epochs=10"] if tiny else []  # shorter rounds would end between two reads of the timings
    results: dict[str, list[Round]] = {name: [] for name in variants}
    for repetition in range(repetitions):
        for name, overrides in variants.items():
            print(f"repetition {repetition + 1}: {name}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                out, common = Path(folder) / "run", [*MPI, f"train_args.comm_round={rounds}", *epochs]
                results[name] += measure(run_command(recipe, out, [*common, *overrides]), out, rounds)
    medians = {name: median(measures) for name, measures in results.items()}
    sp, one_worker = medians["sp"][0], medians["MPI, 1 worker"][0]
    print("\n| runtime | s per round | time / sp | throughput / 1 worker | CPU s per round | others |")
    print("|---|---|---|---|---|---|")
    for name, (wall, cpu, others) in medians.items():
        print(f"| {name} | {wall:.2f} | {wall / sp:.2f} | {one_worker / wall:.2f} | {cpu:.2f} | {others} |")


def silos(*, quick: bool, tiny: bool) -> None:
    """Measure rounds of 5 silos, and the training without communication; tiny: one silo, only with TLS."""
    import numpy as np

    rounds, repetitions = (3, 1) if tiny else (6, 1) if quick else (12, 3)
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
        for digests, suffix in (("true", ""), ("false", ", no digests")):
            for transport, certs in certificates.items():
                recipes[transport + suffix] = folder / f"{transport}{suffix}.yaml"
                text = SILOS.format(data=folder / "data.npz", silos=number, rounds=rounds, certs=certs, digests=digests)
                recipes[transport + suffix].write_text(text)
        client_seconds = training_seconds(recipes["loopback"], number, 2 if tiny else 11)
        if tiny:
            recipes = {"loopback, TLS": recipes["loopback, TLS"]}
        results: dict[str, list[Round]] = {transport: [] for transport in recipes}
        for repetition in range(repetitions):
            for transport, recipe in recipes.items():
                print(f"repetition {repetition + 1}: {transport}", file=sys.stderr)
                out = folder / f"{transport}-{repetition}"
                results[transport] += measure(run_command(recipe, out, []), out, rounds - 1)  # the last has a test
    minimum = client_seconds * number / min(number, CORES)
    cores = f"minimum for {number} on {CORES} cores"
    print(f"\ntraining of one client: {client_seconds:.3f} s; {cores}: {minimum:.3f} s\n")
    print("| transport | s per round | beyond training | CPU s per round, without training | others |")
    print("|---|---|---|---|---|")
    for transport, measures in results.items():
        wall, cpu, others = median(measures)
        print(f"| {transport} | {wall:.2f} | {wall - minimum:.2f} | {cpu - number * client_seconds:.2f} | {others} |")


def uploads(*, quick: bool, tiny: bool) -> None:
    """Measure memory, disk and traffic of the server of an MPI run, for several numbers of clients per round."""
    import numpy as np

    rounds, repetitions, workers = (2, 1, 1) if tiny else (4, 1, 4) if quick else (6, 2, 4)
    numbers = (8,) if tiny else (8, 16, 32)
    results: dict[int, list[Round]] = {clients: [] for clients in numbers}
    memory, disk, sent = (dict.fromkeys(numbers, 0.0) for _ in range(3))
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        y = np.arange(800) % 10
        np.savez(folder / "data.npz", x=rng.integers(0, 256, (800, 8, 8), dtype=np.uint8), y=y)
        for repetition, clients in itertools.product(range(repetitions), numbers):
            print(f"repetition {repetition + 1}: {clients} clients", file=sys.stderr)
            out, recipe = folder / f"{clients}-{repetition}", folder / f"{clients}.yaml"
            values = {"model": "mlp" if tiny else "resnet18", "clients": clients, "workers": workers}
            recipe.write_text(UPLOADS.format(data=folder / "data.npz", rounds=rounds + 1, **values))

            def watch(processes: list[psutil.Process], clients: int = clients, out: Path = out) -> None:
                disk[clients] = max(disk[clients], _disk_mb(out, processes))

            before = _loopback_mb()
            command = [*run_command(recipe, out, []), "--host", "none"]
            results[clients] += measure(command, out, rounds, watch, OMPI_MCA_btl="tcp,self")
            sent[clients] = (_loopback_mb() - before) / (rounds + 1)
            timings = (out / "timings.jsonl").read_text().splitlines()
            memory[clients] = max(memory[clients], *(json.loads(line)["peak_mb"] for line in timings))
    first = median(results[numbers[0]])[0]
    print("\n| clients per round | s per round | ratio | memory, MB | on disk, MB | sent and received, MB | others |")
    print("|---|---|---|---|---|---|---|")
    for clients, measures in results.items():
        wall, _, others = median(measures)
        print(
            f"| {clients} | {wall:.2f} | {wall / first:.2f} | {memory[clients]:.0f} | {disk[clients]:.0f} "
            f"| {sent[clients]:.0f} | {others} |"
        )


def _loopback_mb() -> float:
    """MB that the loopback interface has sent so far."""
    return float(psutil.net_io_counters(pernic=True)["lo"].bytes_sent / 1e6)


def _disk_mb(folder: Path, processes: list[psutil.Process]) -> float:
    """MB of unlinked files of a folder that these processes have mapped."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if str(folder) in line and line.endswith("(deleted)"):
                    start, end = line.split()[0].split("-")
                    total += int(end, 16) - int(start, 16)
    return total / 1e6


def training_seconds(recipe: Path, clients: int, repetitions: int) -> float:
    """CPU seconds of one client's training in a round, with one thread in this process."""
    import torch

    from fl_labelskew_plugins.engine.turn import fit
    from fl_labelskew_plugins.recipe import parse
    from fl_labelskew_plugins.runs import session

    torch.set_num_threads(1)
    built = session.build(parse.load(recipe))
    times = []
    for number in range(repetitions):
        before = time.process_time()
        fit(built.trainer, number % clients, number, built.start, times_selected=number)
        times.append(time.process_time() - before)
    return statistics.median(times[1:])


def main() -> None:
    """Parse the options, and measure the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="a check with few processes, in a minute")
    parser.add_argument("--part", choices=["mpi", "silos", "uploads"], help="measure only this part")
    options = parser.parse_args()
    for name, part in (("mpi", mpi), ("silos", silos), ("uploads", uploads)):
        if options.part in (None, name):
            part(quick=options.quick, tiny=options.tiny)


if __name__ == "__main__":
    main()
