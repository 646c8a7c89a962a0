"""Costs of secure aggregation per round: bytes, and CPU seconds of the server and a silo, compared with clear runs.

    python benchmarks/secure.py            # 5, 10 and 20 silos: up to 21 processes, which have to fit into memory
    python benchmarks/secure.py --quick    # 5 silos
    python benchmarks/secure.py --tiny     # half a minute: that it works; a small network, 4 silos

It prints two Markdown tables. The first is of one silo's shares: CPU milliseconds for verifiable ones (Feldman), and
for those of Shamir's scheme of pycryptodome, alternately; medians of several times. The second is of whole rounds.
An MLP of 45 MB, 5 silos or more of 16 images of 8 by 8, one epoch in one batch, no test but the last; certificates, one
torch thread a process, 32 bits. *Lost*: so many silos have shared their masks and then send nothing, in every round, so
that the others open those masks; sums that may lose silos have noise; the clear run loses nobody. Processes share this
machine, and do without FedML. So seconds are CPU seconds of one process in a round, the median over rounds but the
first (and over silos that are not lost), and *MB* is all that the server received and sent in a round, of its audit
log, the same for each.
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
"""A silo that shares its masks and sends nothing in a round."""


class Cost(NamedTuple):
    """Of a round: megabytes at the server, CPU seconds of the server and of a silo."""

    megabytes: float
    server: float
    silo: float


def measured(recipe: Path, folder: Path, silos: int, lost: int, rounds: int) -> Cost:
    """Run a federation into a folder; medians over its rounds but the first and the last, which has a test."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def start(program: tuple[str, str], out: Path, *role: str) -> subprocess.Popen[bytes]:
        words = ["run", str(recipe), "--host", "none", "--run-dir", str(out), "--quiet", "--server", address]
        words += ["--role", *role]
        log = out.with_suffix(".log").open("wb")
        return subprocess.Popen([sys.executable, *program, *words], env=environment, stdout=log, stderr=log)

    server = start(MAIN, folder / "server", "server")
    others = [
        start(("-c", LOST) if rank <= lost else MAIN, folder / f"silo-{rank}", "client", "--rank", str(rank))
        for rank in range(1, silos + 1)
    ]
    processes = [server, *others]
    timings, marks = folder / "server" / "timings.jsonl", []
    while server.poll() is None:
        time.sleep(0.01)
        done = timings.read_bytes().count(b"\n") if timings.exists() else 0
        if done > len(marks):
            marks.append([_cpu(process.pid) for process in processes])
    for process in processes:
        if process.wait(120):
            last = (folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            sys.exit(f"{process.args!r}\nended with exit code {process.returncode}; the server's last line: {last}")
    seconds = np.diff(np.array(marks), axis=0)[: rounds - 2]
    moved: dict[int, int] = defaultdict(int)
    for line in map(json.loads, (folder / "server" / "audit.jsonl").read_text().splitlines()):
        if line["event"] in ("received", "sent") and line.get("round") is not None:
            moved[line["round"]] += line["bytes"]
    return Cost(
        statistics.median(moved[round] for round in range(1, rounds - 1)) / 1e6,
        float(np.median(seconds[:, 0])),
        float(np.median(seconds[:, 1 + lost :])),
    )


def _cpu(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return float("nan")


def timed(*works: Callable[[], object], times: int) -> list[float]:
    """CPU milliseconds of each, medians over rounds in which each has its turn."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(times):
        for work, taken in zip(works, seconds, strict=True):
            begun = time.process_time()
            work()
            taken.append(1000 * (time.process_time() - begun))
    return [statistics.median(taken) for taken in seconds]


def shares_table(numbers: list[int], times: int) -> None:
    """One silo deals shares of its two secrets, and checks those that all silos have dealt to it."""
    print("| silos | threshold | Shamir: deal, ms | verifiable: deal, ms | check, ms | commitments of a silo, KB |")
    print("|---|---|---|---|---|---|")
    for silos in numbers:
        ranks, least = list(range(1, silos + 1)), 2 * silos // 3 + 1
        _, commitments = dealt = shares.dealt(7, least, ranks, os.urandom)
        plain, deal, check = timed(
            lambda least=least, silos=silos: [Shamir.split(least, silos, bytes(16)) for _ in range(2)],
            lambda least=least, ranks=ranks: [shares.dealt(7, least, ranks, os.urandom) for _ in range(2)],
            lambda dealt=dealt, silos=silos: [shares.fits(dealt[0][3], 3, dealt[1]) for _ in range(2 * silos)],
            times=times,
        )
        kilobytes = 2 * sum(map(len, commitments[1:])) / 1000
        print(f"| {silos} | {least} | {plain:.1f} | {deal:.1f} | {check:.1f} | {kilobytes:.1f} |", flush=True)
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 silos alone")
    parser.add_argument("--tiny", action="store_true", help="a try with a small network, in half a minute")
    options = parser.parse_args()
    numbers, rounds = ([4], 4) if options.tiny else ([5] if options.quick else [5, 10, 20], 7)
    shares_table([4] if options.tiny else [5, 10, 20, 50, 100], times=2 if options.tiny else 5)
    head = ["silos", "lost", "MB per round", "MB / MB of clear", "server, CPU s", "difference from clear"]
    print(f"| {' | '.join([*head, 'a silo, CPU s', 'difference from clear'])} |")
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
                facts = {"silos": silos, "rounds": rounds, "certs": folder / "certs", "secure": str(secure).lower()}
                facts["threshold"] = 2 * silos // 3 + 1 if lost else "null"
                facts["noise"] = "{noise_multiplier: 0.5, clip: 1}" if lost else "{}"  # else no silo may be missing
                recipe.write_text(RECIPE.format(data=data, hidden=hidden, **facts))
                cost = measured(recipe, folder, silos, lost, rounds)
            clear = clear if secure else cost
            times, server, silo = cost.megabytes / clear.megabytes, cost.server - clear.server, cost.silo - clear.silo
            who = f"{silos} | {lost if secure else 'clear'}"
            seconds = f"{cost.server:.2f} | {server:.2f} | {cost.silo:.2f} | {silo:.2f}"
            print(f"| {who} | {cost.megabytes:.1f} | {times:.3f} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
