"""Costs of secure aggregation per round: bytes, and CPU seconds of the server and a silo, compared with clear runs.

    python benchmarks/secure.py            # 5, 10 and 20 silos: up to 21 processes, which must fit into memory
    python benchmarks/secure.py --quick    # 5 silos
    python benchmarks/secure.py --tiny     # half a minute: only a check, with a small network and 4 silos

It prints two Markdown tables. The first shows CPU milliseconds for the secret shares of one silo: verifiable shares
(Feldman), and shares of Shamir's scheme in pycryptodome. The two alternate; the numbers are medians.

The second table shows whole rounds: an MLP of 45 MB, at least 5 silos of 16 images of 8 by 8, one epoch in one batch,
a test only in the last round, certificates, one torch thread per process, 32 bits, no FedML. *Lost* silos share their
masks and then send nothing, in every round, so that the other silos reveal these masks. Sums with lost silos contain
noise. The clear run has no lost silos. *MB* are all bytes that the server received and sent in a round, according to
its audit log (the same in each round). Because all processes share the machine, seconds are CPU seconds of one process
per round: medians over the rounds except the first and the last, and over the silos that are not lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from Crypto.Protocol.SecretSharing import Shamir

from fl_labelskew_plugins.runtimes.silo import certs
from fl_labelskew_plugins.runtimes.silo.secure import shares

RECIPE = """\
common_args: {{training_type: cross_silo}}
data_args: {{dataset: npz, data_cache_dir: {data}}}
partition_args: {{partition_method: iid}}
model_args: {{model: mlp, hidden: {hidden}}}
train_args: {{client_num_in_total: {silos}, client_num_per_round: {silos}, comm_round: {rounds}, batch_size: 64}}
method_args: {{method: fedavg}}
validation_args: {{frequency_of_the_test: 0, personalised: false}}
device_args: {{threads: 1}}
comm_args: {{backend: GRPC, certs: {certs}, answer_after_s: 0, secure_aggregation: {secure},
  secure_threshold: {threshold}}}
privacy_args: {noise}
tracking_args: {{checkpoint_every: 1000}}
"""
MAIN = ("-m", "fl_labelskew_plugins.cli.main")
LOST = """
from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, SitsOutError
from fl_labelskew_plugins.runtimes.silo.secure.silo import SiloRound
mask = SiloRound.mask
def lost(self, *args):
    if self.attempt.round != OPENING:
        raise SitsOutError("lost")
    return mask(self, *args)
SiloRound.mask = lost
main()
"""
"""The program of a silo that shares its masks, but does not send a masked vector."""


class Cost(NamedTuple):
    """Costs per round: megabytes and CPU seconds of the server, and CPU seconds of a silo."""

    megabytes: float
    server: float
    silo: float


def measure(recipe: Path, folder: Path, silos: int, lost: int, rounds: int) -> Cost:
    """Run a federation; medians over its rounds except the first and the last, which has a test."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def start(program: tuple[str, str], out: Path, *role: str) -> subprocess.Popen[bytes]:
        arguments = ["run", str(recipe), "--host", "none", "--run-dir", str(out), "--quiet", "--server", address]
        command = [sys.executable, *program, *arguments, "--role", *role]
        log = out.with_suffix(".log").open("wb")
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    server = start(MAIN, folder / "server", "server")
    clients = [
        start(("-c", LOST) if rank <= lost else MAIN, folder / f"silo-{rank}", "client", "--rank", str(rank))
        for rank in range(1, silos + 1)
    ]
    processes = [server, *clients]
    timings, clocks = folder / "server" / "timings.jsonl", []
    while server.poll() is None:
        time.sleep(0.01)
        completed = timings.read_bytes().count(b"\n") if timings.exists() else 0
        if completed > len(clocks):
            clocks.append([_cpu_seconds(process.pid) for process in processes])
    for process in processes:
        if process.wait(120):
            last = (folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            sys.exit(f"{process.args!r}\nended with exit code {process.returncode}; server log ends with: {last}")
    seconds = np.diff(np.array(clocks), axis=0)[: rounds - 2]
    traffic: dict[int, int] = defaultdict(int)
    for line in map(json.loads, (folder / "server" / "audit.jsonl").read_text().splitlines()):
        if line["event"] in ("received", "sent") and line.get("round") is not None:
            traffic[line["round"]] += line["bytes"]
    return Cost(
        statistics.median(traffic[round] for round in range(1, rounds - 1)) / 1e6,
        float(np.median(seconds[:, 0])),
        float(np.median(seconds[:, 1 + lost :])),
    )


def _cpu_seconds(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return float("nan")


def milliseconds(*functions: Callable[[], object], repetitions: int) -> list[float]:
    """Median CPU milliseconds of each function; the functions alternate."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repetitions):
        for function, row in zip(functions, times, strict=True):
            start_time = time.process_time()
            function()
            row.append(1000 * (time.process_time() - start_time))
    return [statistics.median(row) for row in times]


def print_shares_table(numbers: list[int], repetitions: int) -> None:
    """Measure how one silo deals shares of its two secrets, and checks the shares from all silos."""
    print("| silos | threshold | Shamir: deal, ms | verifiable: deal, ms | check, ms | commitments per silo, KB |")
    print("|---|---|---|---|---|---|")
    for silos in numbers:
        ranks, threshold = list(range(1, silos + 1)), 2 * silos // 3 + 1
        _, commitments = dealt = shares.dealt(7, threshold, ranks, os.urandom)
        shamir, deal, check = milliseconds(
            lambda t=threshold, silos=silos: [Shamir.split(t, silos, bytes(16)) for _ in range(2)],
            lambda t=threshold, ranks=ranks: [shares.dealt(7, t, ranks, os.urandom) for _ in range(2)],
            lambda dealt=dealt, silos=silos: [shares.fits(dealt[0][3], 3, dealt[1]) for _ in range(2 * silos)],
            repetitions=repetitions,
        )
        kilobytes = 2 * sum(map(len, commitments[1:])) / 1000
        print(f"| {silos} | {threshold} | {shamir:.1f} | {deal:.1f} | {check:.1f} | {kilobytes:.1f} |", flush=True)
    print()


def main() -> None:
    """Parse the options, measure, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only 5 silos")
    parser.add_argument("--tiny", action="store_true", help="a check with a small network, in half a minute")
    options = parser.parse_args()
    numbers, rounds = ([4], 4) if options.tiny else ([5] if options.quick else [5, 10, 20], 7)
    print_shares_table([4] if options.tiny else [5, 10, 20, 50, 100], repetitions=2 if options.tiny else 5)
    head = ["silos", "lost", "MB per round", "MB / MB of clear", "server, CPU s", "difference from clear"]
    print(f"| {' | '.join([*head, 'silo, CPU s', 'difference from clear'])} |")
    print("|---|---|---|---|---|---|---|---|")
    for silos in numbers:
        clear = Cost(0.0, 0.0, 0.0)
        for secure, lost in ((False, 0), *([] if options.tiny else [(True, 0)]), (True, max(1, silos // 5))):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                certs.new(folder / "certs", silos)
                data, rng, size = folder / "data.npz", np.random.default_rng(0), 20 * silos
                x = rng.integers(0, 256, (size, 8, 8), dtype=np.uint8)
                np.savez(data, x=x, y=np.arange(size) % 10)
                recipe, hidden = folder / "recipe.yaml", [128] if options.tiny else [3300, 3300]
                values = {"silos": silos, "rounds": rounds, "certs": folder / "certs", "secure": str(secure).lower()}
                values["threshold"] = 2 * silos // 3 + 1 if lost else "null"
                values["noise"] = "{noise_multiplier: 0.5, clip: 1}" if lost else "{}"  # lost silos require noise
                recipe.write_text(RECIPE.format(data=data, hidden=hidden, **values))
                cost = measure(recipe, folder, silos, lost, rounds)
            clear = clear if secure else cost
            ratio, server, silo = cost.megabytes / clear.megabytes, cost.server - clear.server, cost.silo - clear.silo
            row = f"{silos} | {lost if secure else 'clear'} | {cost.megabytes:.1f} | {ratio:.3f}"
            print(f"| {row} | {cost.server:.2f} | {server:.2f} | {cost.silo:.2f} | {silo:.2f} |", flush=True)


if __name__ == "__main__":
    main()
