"""A federation with a fault every few seconds: it has to end with the weights of an undisturbed one.

    python benchmarks/soak.py                                  # 300 rounds, 8 silos: half an hour on two cores
    python benchmarks/soak.py --rounds 20 --silos 3 --every 5  # a few minutes
    python benchmarks/soak.py --tiny                           # half a minute: that it works; 2 silos, no full disks

A server and silos, each a process as a user starts it, on 127.0.0.1 with certificates, first undisturbed and then with
a random fault every few seconds, at a silo or at the server (of the first three: at one silo's connection, or all):

- cut: the connection is reset; the silo may connect again at once
- outage: it is reset, and nobody gets through for some seconds
- stall: nothing gets through for some seconds, and then everything that waited
- kill: SIGKILL
- freeze: SIGSTOP, and SIGCONT some seconds later
- full disk: the file system with the process's folder, a small tmpfs, has no room left for some seconds

Whatever ends badly is started again after a second, as systemd would, the server with ``--resume``. Nobody may be left
out, so that weights, measures and the silos' own models have to be those of the undisturbed run, byte for byte; nothing
may end that was neither killed nor out of room, and no log may hold a traceback. Exit code 1 if any of this is not so.
There are two kills and full disks at a time at most, so that rounds do go on. The tmpfs are mounted in a namespace of
this run's own (``unshare``); where that is not allowed there are none, and no full disks. ``--seed`` decides kinds,
places and lengths, not the moments.
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
method_args: {{method: [fedshift, fedphp]}}  # an opening, what all share, and private state that training rests on
device_args: {{threads: 1}}
comm_args: {{backend: GRPC, certs: certs, min_clients: {silos}, reconnect_s: 900, quorum_timeout_s: 900}}
tracking_args: {{checkpoint_every: 1}}
"""
LABELSKEW = [sys.executable, "-m", "fl_labelskew_plugins.cli.main"]
KINDS = ("cut", "outage", "stall", "kill", "freeze", "full disk")
ENDING = ("kill", "full disk")
AT_A_TIME = 2
"""Faults that end a process, and that the rounds have not got over yet."""
SERVER_SHARE = 0.25
SECONDS = (0.5, 6.0)
RESTART_S = 1.0
DISK = 48 * 2**20
AFTER_S = 15.0
"""How long after its disk was full a process may end of it."""
STUCK_S = 600.0
OWN_MOUNTS = "SOAK_OWN_MOUNTS"


def print_line(line: str) -> str:
    """A line of progress, and the line again."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
    return line


class Line:
    """A silo's way to the server, a TCP proxy."""

    def __init__(self, port: int) -> None:
        self._port, self.up, self._ends = port, True, set[socket.socket]()
        self.flows = threading.Event()
        self.flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Reset all connections."""
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)  # wakes the reading thread, which closes it

    def _serve(self) -> None:
        while True:
            inner, _ = self._listener.accept()
            threading.Thread(target=self._carry, args=(inner,), daemon=True).start()

    def _carry(self, inner: socket.socket) -> None:
        with contextlib.suppress(OSError), inner:
            self.flows.wait()
            if not self.up:
                return
            with socket.create_connection(("127.0.0.1", self._port)) as outer:
                ends = {inner, outer}
                self._ends |= ends
                back = threading.Thread(target=self._pass, args=(outer, inner), daemon=True)
                back.start()
                self._pass(inner, outer)
                back.join()
                self._ends -= ends

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flows.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@dataclass
class Part:
    """The server or a silo: a process that is started again where it ends badly.

    Its folder is a separate file system if disks can be full. It is ready when its log contains the words ``up``.
    Of its ``lines``, the connections, the server's are everybody's.
    """

    name: str
    command: Callable[[], list[str]]
    folder: Path
    log: Path
    up: str
    lines: list[Line]
    starts: int = 0
    excused_until: float = 0.0
    """Until when it may end badly."""
    again_at: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self.starts += 1
        self.again_at = self.excused_until = 0.0
        scratch = self.log.parent / "tmp"  # files of killed processes are removed with the rest
        scratch.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._begun = log.tell()
            self.process = subprocess.Popen(
                self.command(),
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours
            )

    def said(self) -> str:
        """All that it has said since it was started last."""
        return self.log.read_bytes()[self._begun :].decode(errors="replace")

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def tend(self) -> str | None:
        """Start it again if its time has come; how it ended, once, where it has just ended and nothing excuses it."""
        code = None if self.process is None else self.process.poll()
        if not code:
            return None
        now = time.monotonic()
        if self.again_at:
            if now >= self.again_at:
                self.start()
            return None
        self.again_at = now + RESTART_S
        last = (self.said().splitlines() or [""])[-1]
        return None if now < self.excused_until else f"{self.name} ended with exit code {code}: {last}"

    @property
    def ready(self) -> bool:
        """Whether it runs and is there."""
        return self.process is not None and self.process.poll() is None and self.up in self.said()

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return self.process is not None and self.process.poll() == 0


@dataclass
class Fault:
    """What of :data:`KINDS` was done to whom, for how long, and how many rounds were complete when it began."""

    kind: str
    part: Part
    seconds: float
    rounds: int
    begun: float
    ended: bool = False
    recovered: float | None = None
    """Seconds until a round was complete that had begun after it, all of it included."""

    def begin(self) -> None:
        """Do it."""
        for line in self.part.lines:
            if self.kind in ("cut", "outage"):
                line.up = self.kind == "cut"
                line.cut()
            elif self.kind == "stall":
                line.flows.clear()
        if self.kind == "kill":
            self.part.excused_until = math.inf
            self.part.send_signal(signal.SIGKILL)
        elif self.kind == "freeze":
            self.part.send_signal(signal.SIGSTOP)
        elif self.kind == "full disk":
            self.fill()

    def fill(self) -> None:
        """Leave no byte of the file system free."""
        self.part.excused_until = max(self.part.excused_until, time.monotonic() + AFTER_S)
        with contextlib.suppress(OSError), (self.part.folder.parent / "ballast").open("ab", buffering=0) as ballast:
            for size in (2**20, 4096, 1):
                with contextlib.suppress(OSError):
                    while ballast.write(bytes(size)):
                        pass

    def end(self) -> None:
        """Undo it."""
        self.ended = True
        for line in self.part.lines if self.kind in ("outage", "stall") else ():
            line.up = True
            line.flows.set()
        if self.kind == "freeze":
            self.part.send_signal(signal.SIGCONT)
        elif self.kind == "full disk":
            (self.part.folder.parent / "ballast").unlink(missing_ok=True)

    def __str__(self) -> str:
        where = "all silos" if self.part.name == "server" and self.kind in KINDS[:3] else self.part.name
        return f"{self.kind} of {self.seconds:.1f} s, {where}" if self.seconds else f"{self.kind}, {where}"


@dataclass
class Run:
    """One federation, from its start to its end; ``disks``: whether every part has its own file system."""

    folder: Path
    rounds: int
    silos: int
    disks: bool
    faults: list[Fault] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    seconds: float = 0.0
    complete: int = 0
    most: int = 0
    moved: float = 0.0
    _mounted: list[Path] = field(default_factory=list)

    def prepare(self, recipe: Path, more: list[str]) -> None:
        """Folders, lines and commands, which have these words more."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.out = self._disk("server") / "run"
        run = [*LABELSKEW, "run", str(recipe), *more]
        lines = [Line(port) for _ in range(self.silos)]

        def server() -> list[str]:
            where = "--resume" if (self.out / "recipe.yaml").exists() else "--run-dir"
            return [*run, "--role", "server", "--server", f"127.0.0.1:{port}", where, str(self.out)]

        self.server = Part("server", server, self.out, self.folder / "server.log", "listening on", lines)
        self.parts = [self.server]
        for rank, line in enumerate(lines, 1):
            out = self._disk(f"silo-{rank}") / "run"
            command = [*run, "--role", "client", "--rank", str(rank), "--server", line.address, "--run-dir", str(out)]
            log = self.folder / f"silo-{rank}.log"
            self.parts.append(Part(f"silo {rank}", partial(list, command), out, log, "connected to the server", [line]))

    def _disk(self, name: str) -> Path:
        disk = self.folder / name
        disk.mkdir(parents=True)
        if self.disks:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
            self._mounted.append(disk)
        return disk

    def run(self, rng: random.Random | None, every: float) -> None:
        """Until everybody has ended well; with faults where there is a ``rng``."""
        begun = self.moved = following = time.monotonic()
        try:
            for part in self.parts:
                part.start()
            while not (all(part.done for part in self.parts) or (rng is None and self.troubles) or self._stuck()):
                now = time.monotonic()
                self.troubles += [print_line(ended) for ended in (part.tend() for part in self.parts) if ended]
                self._count(now)
                for fault in self.faults:
                    self._follow(fault, now)
                if rng is not None and now >= following and self.complete < self.rounds - 1:
                    self._disturb(rng, now)
                    following = now + every * rng.uniform(0.5, 1.5)
                time.sleep(0.05)
        finally:
            self._end()
            self.seconds = time.monotonic() - begun

    def _end(self) -> None:
        """End all processes, and copy the separate file systems to plain folders of the same names."""
        for part in self.parts:
            part.send_signal(signal.SIGKILL)
        for part in self.parts:
            if part.process is not None:
                part.process.wait()
        for fault in self.faults:
            fault.end()
        for disk in self._mounted:
            kept = disk.with_name(f"{disk.name}-kept")
            shutil.copytree(disk, kept)
            subprocess.run(["umount", str(disk)], check=True)
            disk.rmdir()
            kept.rename(disk)

    def _count(self, now: float) -> None:
        lines = self.out / "metrics.jsonl"
        complete = lines.read_bytes().count(b"\n") if lines.exists() else 0
        if complete > self.most:
            self.most, self.moved = complete, now
            if complete % 10 == 0:
                print_line(f"{complete} of {self.rounds} rounds, {len(self.faults)} faults")
        self.complete = complete

    def _stuck(self) -> bool:
        if stuck := time.monotonic() - self.moved > STUCK_S:
            self.troubles.append(f"no round is complete since {STUCK_S:.0f} s")
        return stuck

    def _disturb(self, rng: random.Random, now: float) -> None:
        there = [part for part in self.parts if part.ready]
        if not there:
            return
        part = self.server if self.server in there and rng.random() < SERVER_SHARE else rng.choice(there)
        kind, seconds = rng.choice(KINDS), rng.uniform(*SECONDS)
        if kind == "full disk" and not self.disks:
            kind = "kill"
        if kind in ENDING and sum(f.kind in ENDING and f.recovered is None for f in self.faults) >= AT_A_TIME:
            kind = rng.choice(KINDS[:3])
        fault = Fault(kind, part, 0.0 if kind in ("cut", "kill") else seconds, self.complete, now)
        self.faults.append(fault)
        print_line(f"round {self.complete + 1}: {fault}")
        fault.begin()

    def _follow(self, fault: Fault, now: float) -> None:
        if not fault.ended and now >= fault.begun + fault.seconds:
            fault.end()
        elif not fault.ended and fault.kind == "full disk":
            fault.fill()  # the space that the process has freed
        # the current round may not have needed the affected part; the next one did
        if fault.ended and fault.recovered is None and self.complete >= min(fault.rounds + 2, self.rounds):
            fault.recovered = now - fault.begun


def results(run: Run) -> dict[str, bytes]:
    """What has to be the same in both runs: weights and measures, and each silo's own model."""
    files = {name: run.out / name for name in ("model.safetensors", "metrics.jsonl")}
    for part in run.parts[1:]:
        files |= {f"{part.name}, {path.name}": path for path in part.folder.glob("*/personalised.safetensors")}
    return {name: path.read_bytes() if path.exists() else b"" for name, path in files.items()}


def wrong(run: Run) -> list[str]:
    """What must not have happened, in lines."""
    lines, metrics = list(run.troubles), run.out / "metrics.jsonl"
    if metrics.exists() and b"left_out" in metrics.read_bytes():
        lines.append("somebody was left out")
    for part in run.parts:
        if "Traceback" in part.log.read_text(encoding="utf-8"):
            lines.append(f"a traceback in {part.log.name}")
        try:
            audit.verify(part.folder)
        except LabelSkewError as error:
            lines.append(f"{part.name}: audit log: {error}")
    return [f"{run.folder.name}: {line}" for line in lines]


def table(run: Run) -> None:
    """Faults by kind and place, and how long it took until a whole round was complete after them."""
    print("| fault | where | times | s until a round was complete: median | most |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        for where in ("server", "silo"):
            faults = [f for f in run.faults if f.kind == kind and f.part.name.startswith(where)]
            took = [f.recovered for f in faults if f.recovered is not None]
            if faults:
                place = "all silos" if where == "server" and kind in KINDS[:3] else where
                figures = f"{statistics.median(took):.1f} | {max(took):.1f}" if took else "- | -"
                print(f"| {kind} | {place} | {len(faults)} | {figures} |")


def soak(folder: Path, options: argparse.Namespace, *, disks: bool) -> bool:
    """Both runs; whether the second one is as good as the first."""
    rounds, silos = options.rounds, options.silos
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(rounds=rounds, silos=silos), encoding="utf-8")
    certs.new(folder / "certs", silos)
    more = [word for override in options.set for word in ("--set", override)]
    more += ["--host", "none"] if options.tiny else []
    calm, run = (Run(folder / name, rounds, silos, disks) for name in ("undisturbed", "disturbed"))
    for federation, rng in ((calm, None), (run, random.Random(options.seed))):
        print_line(f"{federation.folder.name}: logs in {federation.folder}")
        federation.prepare(recipe, more)
        federation.run(rng, options.every)
        if calm.troubles:
            return False
    table(run)
    restarts = Counter(part.name.partition(" ")[0] for part in run.parts for _ in range(part.starts - 1))
    print(
        f"\n{rounds} rounds, {silos} silos: {calm.seconds:.0f} s undisturbed; {run.seconds:.0f} s with "
        f"{len(run.faults)} faults, {restarts['server']} restarts of the server and {restarts['silo']} of silos"
    )
    want, have = results(calm), results(run)
    names = sorted(want.keys() | have.keys())
    lines = [*wrong(calm), *wrong(run)]
    lines += [f"{name} differs" for name in names if not want.get(name) or want[name] != have.get(name)]
    for line in lines:
        print(f"WRONG: {line}")
    if not lines:
        print(f"equal, byte for byte: {len(want)} files; nobody left out, no traceback, audit logs whole")
    return not lines


def mounts() -> bool:
    """Whether file systems can be mounted; restarts this program in its own mount namespace if necessary.

    They go with the last process that has them.
    """
    if os.environ.pop(OWN_MOUNTS, None):
        return True
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
        tried = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", folder], stderr=subprocess.DEVNULL, check=False
        )
        if tried.returncode == 0:
            os.environ[OWN_MOUNTS] = "yes"
    if OWN_MOUNTS in os.environ:
        os.execvp("unshare", ["unshare", "-rm", sys.executable, *sys.argv])
    print("no full disks: a tmpfs cannot be mounted here (unshare -rm)", file=sys.stderr)
    return False


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--silos", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--every", type=float, default=3.0, metavar="S", help="a fault every S seconds, on average")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the recipe")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep all logs and results in this new folder")
    parser.add_argument("--tiny", action="store_true", help="a try with few processes, in half a minute")
    options = parser.parse_args()
    if options.tiny:
        options.rounds, options.silos, options.every = 3, 2, 2.0
        options.set.append("train_args.epochs=100")  # otherwise the rounds may end before the first fault
    disks = not options.tiny and mounts()
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
