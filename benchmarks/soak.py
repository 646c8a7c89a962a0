"""Inject random faults into a federation, and compare its results with a run without faults.

    python benchmarks/soak.py                                  # 300 rounds, 8 silos: half an hour on two cores
    python benchmarks/soak.py --rounds 20 --silos 3 --every 5  # a few minutes
    python benchmarks/soak.py --tiny                           # half a minute: 2 silos, no full disks; only a check

The server and the silos are separate processes on 127.0.0.1 with certificates, started like a user starts them.
The first run is undisturbed. In the second run, a random fault affects a silo or the server every few seconds. The
first three faults affect connections: those of one silo, or those of all silos if the target is the server.

- cut: resets the connections; the silo can reconnect immediately
- outage: resets the connections, and blocks new ones for some seconds
- stall: delays all traffic for some seconds, without loss
- kill: SIGKILL
- freeze: SIGSTOP, and SIGCONT some seconds later
- full disk: fills the file system of the process's folder (a small tmpfs) for some seconds

The benchmark restarts a failed process after one second, as systemd would; the server restarts with ``--resume``. The
exit code is 0 only if no silo was excluded, all weights, metrics and private models are byte-identical in both runs,
processes failed only after a kill or a full disk, no log contains a traceback, and all audit logs are valid.

At most two kills and full disks are active at a time, so that rounds complete. The tmpfs are mounted in a separate
mount namespace (``unshare``). Without permission to mount, full disks are skipped. ``--seed`` determines the kinds,
targets and durations of faults, but not their times.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.ledgers import audit
from fl_labelskew_plugins.machine.signals import interrupting
from fl_labelskew_plugins.runtimes.silo import certs

RECIPE = """\
common_args: {{training_type: cross_silo}}
data_args: {{dataset: digits}}
partition_args: {{partition_method: pcdd, classes_per_client: 5}}
model_args: {{model: mlp, hidden: [16]}}
train_args: {{client_num_in_total: {silos}, comm_round: {rounds}, epochs: 10, batch_size: 32,
             learning_rate: 0.1}}
method_args: {{method: [fedshift, fedphp]}}  # opening exchange, shared tensors, and private states used in training
device_args: {{threads: 1}}
comm_args: {{backend: GRPC, certs: certs, min_clients: {silos}, reconnect_s: 900, quorum_timeout_s: 900}}
tracking_args: {{checkpoint_every: 1}}
"""
LABELSKEW = [sys.executable, "-m", "fl_labelskew_plugins.cli.main"]
CONNECTION_FAULTS = ("cut", "outage", "stall")
TERMINATING_FAULTS = ("kill", "full disk")
FAULTS = (*CONNECTION_FAULTS, "kill", "freeze", "full disk")
MAX_TERMINATING = 2
"""Limit of terminating faults from which the run has not recovered yet."""
SERVER_SHARE = 0.25
FAULT_S = (0.5, 6.0)
RESTART_S = 1.0
DISK_BYTES = 48 * 2**20
DISK_FAILURE_S = 15.0
"""After its disk was full, a process may fail for this reason during these seconds."""
STUCK_S = 600.0
MOUNT_NAMESPACE = "SOAK_MOUNT_NAMESPACE"


def print_progress(line: str) -> str:
    """Print a line of progress and return it."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
    return line


class Proxy:
    """A TCP proxy between a silo and the server."""

    def __init__(self, port: int) -> None:
        self._port, self.accepts, self._sockets = port, True, set[socket.socket]()
        self.forwards = threading.Event()
        self.forwards.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def reset(self) -> None:
        """Reset all connections."""
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)  # wakes the reading thread, which closes the socket

    def _serve(self) -> None:
        while True:
            silo, _ = self._listener.accept()
            threading.Thread(target=self._connect, args=(silo,), daemon=True).start()

    def _connect(self, silo: socket.socket) -> None:
        with contextlib.suppress(OSError), silo:
            self.forwards.wait()
            if not self.accepts:
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                self._sockets |= {silo, server}
                downlink = threading.Thread(target=self._forward, args=(server, silo), daemon=True)
                downlink.start()
                self._forward(silo, server)
                downlink.join()
                self._sockets -= {silo, server}

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.forwards.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@dataclass
class Node:
    """The server or a silo, as a process that is restarted after a failure.

    ``folder`` is on a separate file system if disks can be full. The node is ready when its log contains
    ``ready_text``. ``proxies`` are those of its connections; the server has the proxies of all silos.
    """

    name: str
    command: Callable[[], list[str]]
    folder: Path
    log: Path
    ready_text: str
    proxies: list[Proxy]
    starts: int = 0
    failure_allowed_until: float = 0.0
    restart_at: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        self.restart_at = self.failure_allowed_until = 0.0
        scratch = self.log.parent / "tmp"  # killed processes leave files here; they are deleted with the run
        scratch.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._log_offset = log.tell()
            self.process = subprocess.Popen(
                self.command(),
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only the benchmark receives Ctrl-C
            )

    def log_text(self) -> str:
        """The log since the last start."""
        return self.log.read_bytes()[self._log_offset :].decode(errors="replace")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it is still running."""
        if self.process is not None:
            self.process.send_signal(number)

    def restart_if_failed(self) -> str | None:
        """Restart a failed process after ``RESTART_S``; return an error message once if the failure is unexpected."""
        code = None if self.process is None else self.process.poll()
        if not code:
            return None
        now = time.monotonic()
        if self.restart_at:
            if now >= self.restart_at:
                self.start()
            return None
        self.restart_at = now + RESTART_S
        last = (self.log_text().splitlines() or [""])[-1]
        return None if now < self.failure_allowed_until else f"{self.name} ended with exit code {code}: {last}"

    @property
    def ready(self) -> bool:
        """Whether the process is running and has started completely."""
        return self.process is not None and self.process.poll() is None and self.ready_text in self.log_text()

    @property
    def finished(self) -> bool:
        """Whether the process has ended with exit code 0."""
        return self.process is not None and self.process.poll() == 0


@dataclass
class Fault:
    """A fault of a kind in :data:`FAULTS`, with its duration and the number of rounds completed before it."""

    kind: str
    node: Node
    seconds: float
    completed_rounds: int
    start_time: float
    ended: bool = False
    recovery_s: float | None = None
    """Seconds from the start of the fault to the end of the first round that began after it."""

    def begin(self) -> None:
        """Inject the fault."""
        for proxy in self.node.proxies:
            if self.kind in ("cut", "outage"):
                proxy.accepts = self.kind == "cut"
                proxy.reset()
            elif self.kind == "stall":
                proxy.forwards.clear()
        if self.kind == "kill":
            self.node.failure_allowed_until = math.inf
            self.node.send_signal(signal.SIGKILL)
        elif self.kind == "freeze":
            self.node.send_signal(signal.SIGSTOP)
        elif self.kind == "full disk":
            self.fill_disk()

    def fill_disk(self) -> None:
        """Write a file until the file system is full."""
        self.node.failure_allowed_until = max(self.node.failure_allowed_until, time.monotonic() + DISK_FAILURE_S)
        with contextlib.suppress(OSError), (self.node.folder.parent / "filler").open("ab", buffering=0) as filler:
            for size in (2**20, 4096, 1):
                with contextlib.suppress(OSError):
                    while filler.write(bytes(size)):
                        pass

    def end(self) -> None:
        """End the fault."""
        self.ended = True
        for proxy in self.node.proxies if self.kind in ("outage", "stall") else ():
            proxy.accepts = True
            proxy.forwards.set()
        if self.kind == "freeze":
            self.node.send_signal(signal.SIGCONT)
        elif self.kind == "full disk":
            (self.node.folder.parent / "filler").unlink(missing_ok=True)

    def __str__(self) -> str:
        target = "all silos" if self.node.name == "server" and self.kind in CONNECTION_FAULTS else self.node.name
        return f"{self.kind} of {self.seconds:.1f} s, {target}" if self.seconds else f"{self.kind}, {target}"


@dataclass
class Run:
    """One federation from start to end; ``disks``: whether each node has a separate file system."""

    folder: Path
    rounds: int
    silos: int
    disks: bool
    faults: list[Fault] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    completed: int = 0
    max_completed: int = 0
    last_progress: float = 0.0
    _mounted: list[Path] = field(default_factory=list)

    def prepare(self, recipe: Path, arguments: list[str]) -> None:
        """Create the folders, the proxies, and the commands with these additional arguments."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.out = self._disk("server") / "run"
        run = [*LABELSKEW, "run", str(recipe), *arguments]
        proxies = [Proxy(port) for _ in range(self.silos)]

        def server() -> list[str]:
            option = "--resume" if (self.out / "recipe.yaml").exists() else "--run-dir"
            return [*run, "--role", "server", "--server", f"127.0.0.1:{port}", option, str(self.out)]

        self.server = Node("server", server, self.out, self.folder / "server.log", "listening on", proxies)
        self.nodes = [self.server]
        for rank, proxy in enumerate(proxies, 1):
            out = self._disk(f"silo-{rank}") / "run"
            command = [*run, "--role", "client", "--rank", str(rank), "--server", proxy.address, "--run-dir", str(out)]
            log, connected = self.folder / f"silo-{rank}.log", "connected to the server"
            self.nodes.append(Node(f"silo {rank}", partial(list, command), out, log, connected, [proxy]))

    def _disk(self, name: str) -> Path:
        disk = self.folder / name
        disk.mkdir(parents=True)
        if self.disks:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], check=True)
            self._mounted.append(disk)
        return disk

    def run(self, rng: random.Random | None, every: float) -> None:
        """Run until all nodes have finished; inject faults if ``rng`` is given."""
        start_time = self.last_progress = next_fault = time.monotonic()
        try:
            for node in self.nodes:
                node.start()
            while not (all(node.finished for node in self.nodes) or (rng is None and self.errors) or self._stuck()):
                now = time.monotonic()
                failures = [node.restart_if_failed() for node in self.nodes]
                self.errors += [print_progress(failure) for failure in failures if failure]
                self._count_rounds(now)
                for fault in self.faults:
                    self._update(fault, now)
                due = rng is not None and now >= next_fault and self.completed < self.rounds - 1
                if due and self._inject_fault(rng, now):
                    next_fault = now + every * rng.uniform(0.5, 1.5)
                time.sleep(0.05)
        finally:
            self._end()
            self.seconds = time.monotonic() - start_time

    def _end(self) -> None:
        """End all processes, and copy the separate file systems to plain folders of the same names."""
        for node in self.nodes:
            node.send_signal(signal.SIGKILL)
        for node in self.nodes:
            if node.process is not None:
                node.process.wait()
        for fault in self.faults:
            fault.end()
        for disk in self._mounted:
            copy = disk.with_name(f"{disk.name}-copy")
            shutil.copytree(disk, copy)
            subprocess.run(["umount", str(disk)], check=True)
            disk.rmdir()
            copy.rename(disk)

    def _count_rounds(self, now: float) -> None:
        metrics = self.out / "metrics.jsonl"
        self.completed = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if self.completed > self.max_completed:
            self.max_completed, self.last_progress = self.completed, now
            if self.completed % 10 == 0:
                print_progress(f"{self.completed} of {self.rounds} rounds, {len(self.faults)} faults")

    def _stuck(self) -> bool:
        if stuck := time.monotonic() - self.last_progress > STUCK_S:
            self.errors.append(f"no round was completed for {STUCK_S:.0f} s")
        return stuck

    def _inject_fault(self, rng: random.Random, now: float) -> bool:
        """Inject a fault; False if no node is ready."""
        ready = [node for node in self.nodes if node.ready]
        if not ready:
            return False
        node = self.server if self.server in ready and rng.random() < SERVER_SHARE else rng.choice(ready)
        kind, seconds = rng.choice(FAULTS), rng.uniform(*FAULT_S)
        if kind == "full disk" and not self.disks:
            kind = "kill"
        active = [fault for fault in self.faults if fault.kind in TERMINATING_FAULTS and fault.recovery_s is None]
        if kind in TERMINATING_FAULTS and len(active) >= MAX_TERMINATING:
            kind = rng.choice(CONNECTION_FAULTS)
        fault = Fault(kind, node, 0.0 if kind in ("cut", "kill") else seconds, self.completed, now)
        self.faults.append(fault)
        print_progress(f"round {self.completed + 1}: {fault}")
        fault.begin()
        return True

    def _update(self, fault: Fault, now: float) -> None:
        if not fault.ended and now >= fault.start_time + fault.seconds:
            fault.end()
        elif not fault.ended and fault.kind == "full disk":
            fault.fill_disk()  # the process may have freed space
        # the current round may not have needed the affected node, but the next round did
        if fault.ended and fault.recovery_s is None and self.completed >= min(fault.completed_rounds + 2, self.rounds):
            fault.recovery_s = now - fault.start_time


def read_results(run: Run) -> dict[str, bytes]:
    """The files that must be identical in both runs: weights, metrics, and the private model of each silo."""
    files = {name: run.out / name for name in ("model.safetensors", "metrics.jsonl")}
    for node in run.nodes[1:]:
        files |= {f"{node.name}, {path.name}": path for path in node.folder.glob("*/personalised.safetensors")}
    return {name: path.read_bytes() if path.exists() else b"" for name, path in files.items()}


def find_errors(run: Run) -> list[str]:
    """Error messages: unexpected failures, excluded silos, tracebacks and invalid audit logs."""
    errors, metrics = list(run.errors), run.out / "metrics.jsonl"
    if metrics.exists() and b"left_out" in metrics.read_bytes():
        errors.append("the server excluded a silo from a round")
    for node in run.nodes:
        if "Traceback" in node.log.read_text(encoding="utf-8"):
            errors.append(f"{node.log.name} contains a traceback")
        try:
            audit.verify(node.folder)
        except LabelSkewError as error:
            errors.append(f"{node.name}: audit log: {error}")
    return [f"{run.folder.name}: {error}" for error in errors]


def print_table(run: Run) -> None:
    """Print the number of faults and the recovery times, for each kind and target."""
    print("| fault | target | count | recovery, s: median | maximum |")
    print("|---|---|---|---|---|")
    for kind in FAULTS:
        for name in ("server", "silo"):
            faults = [fault for fault in run.faults if fault.kind == kind and fault.node.name.startswith(name)]
            seconds = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
            if faults:
                target = "all silos" if name == "server" and kind in CONNECTION_FAULTS else name
                cells = f"{statistics.median(seconds):.1f} | {max(seconds):.1f}" if seconds else "- | -"
                print(f"| {kind} | {target} | {len(faults)} | {cells} |")


def soak(folder: Path, options: argparse.Namespace, *, disks: bool) -> bool:
    """Execute both runs, and return whether the disturbed run has the required results."""
    rounds, silos = options.rounds, options.silos
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(rounds=rounds, silos=silos), encoding="utf-8")
    certs.new(folder / "certs", silos)
    arguments = [word for override in options.set for word in ("--set", override)]
    arguments += ["--host", "none"] if options.tiny else []
    undisturbed, disturbed = (Run(folder / name, rounds, silos, disks) for name in ("undisturbed", "disturbed"))
    for run, rng in ((undisturbed, None), (disturbed, random.Random(options.seed))):
        print_progress(f"{run.folder.name}: logs in {run.folder}")
        run.prepare(recipe, arguments)
        run.run(rng, options.every)
        if undisturbed.errors:
            return False
    print_table(disturbed)
    restarts = Counter(node.name.partition(" ")[0] for node in disturbed.nodes for _ in range(node.starts - 1))
    print(
        f"\n{rounds} rounds, {silos} silos: {undisturbed.seconds:.0f} s undisturbed; {disturbed.seconds:.0f} s with "
        f"{len(disturbed.faults)} faults, {restarts['server']} restarts of the server and {restarts['silo']} of silos"
    )
    expected, actual = read_results(undisturbed), read_results(disturbed)
    names = sorted(expected.keys() | actual.keys())
    errors = [*find_errors(undisturbed), *find_errors(disturbed)]
    errors += [f"{name} differs" for name in names if not expected.get(name) or expected[name] != actual.get(name)]
    for error in errors:
        print(f"ERROR: {error}")
    if not errors:
        print(f"{len(expected)} files are byte-identical; no excluded silo, no traceback, audit logs valid")
    return not errors


def can_mount() -> bool:
    """Whether file systems can be mounted; restarts this program in a separate mount namespace if necessary.

    The mounts disappear when the last process in the namespace ends.
    """
    if os.environ.pop(MOUNT_NAMESPACE, None):
        return True
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
        command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", folder]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            os.environ[MOUNT_NAMESPACE] = "yes"
    if MOUNT_NAMESPACE in os.environ:
        os.execvp("unshare", ["unshare", "-rm", sys.executable, *sys.argv])
    print("full disks are skipped: cannot mount a tmpfs with unshare -rm", file=sys.stderr)
    return False


def main() -> None:
    """Parse the options, and run the benchmark in a temporary or given folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="default: 300")
    parser.add_argument("--silos", type=int, default=8, help="default: 8")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--every", type=float, default=3.0, metavar="S", help="mean seconds between two faults")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the recipe")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep all logs and results in this new folder")
    parser.add_argument("--tiny", action="store_true", help="a check with few processes, in half a minute")
    options = parser.parse_args()
    if options.tiny:
        options.rounds, options.silos, options.every = 3, 2, 2.0
        options.set.append("train_args.epochs=100")  # otherwise the rounds may end before the first fault
    disks = not options.tiny and can_mount()
    with contextlib.ExitStack() as stack:
        stack.enter_context(interrupting())
        if options.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        else:
            folder = options.out.resolve()
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                parser.error(f"--out {options.out}: {error.strerror}; use a folder that does not exist yet")
        try:
            sys.exit(0 if soak(folder, options, disks=disks) else 1)
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
