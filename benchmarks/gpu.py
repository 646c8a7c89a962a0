"""Measures the engine on a GPU: tests, step costs, rounds, and the papers' scale, as far as the time goes.

    python benchmarks/gpu.py                 # at most 10 minutes; run it again to continue
    python benchmarks/gpu.py --minutes 28    # in one go
    python benchmarks/gpu.py --smoke         # a minute on a CPU: that all of it works; tiny; no real numbers

From a checkout, with torch for CUDA and torchvision. On a machine that has nothing more and no network, with what
``python tools/carry.py`` has put into ``carry/``, in one command:

    python3 -m pip install -q --no-index --no-deps --upgrade --target /tmp/site carry/*.whl &&
    PYTHONPATH=/tmp/site python3 benchmarks/gpu.py

In this order, each part's numbers being written as soon as they are there, to ``results.jsonl`` and ``results.md`` in
the folder ``--out``; what is there already is not measured again:

1. tests: those marked ``gpu``.
2. steps: milliseconds of a client's step, all of its turn shared out, with every method and optimiser on the CNN of
   FedLC's table 8 (the work of benchmarks/mixing.py), and with those of FedMR's table 1 and FedRS, FedLC and FedShift
   on ResNet18, batches of 128, the paper's epochs of fewer samples. Taken in turn; medians, of ratios to FedAvg, too.
3. rounds: ours, without a test, beside (a) a plain loop over the same samples in the same batches, channels last, fused
   SGD, cuDNN's benchmark, and (b) one loop over the same samples in batches of 1,024, the limit. All three have the
   same precision and one local epoch, in turn; medians, of ratios, too. A test's share of a round with one. Memory is
   what a round takes on the device beyond what lies there before. Workers: 1, 2 and 4 over MPI on the one device.
4. scale: FedMR's table 1, Fashion-MNIST, ResNet18, 10 epochs, batches of 128, seed 0: P10C2 and P5C2 with FedAvg,
   FedMR, FedLC, FedRS and FedShift (the last three as FedAvg's recipes, with their own defaults), all to the same
   round, gone on with from their checkpoints. The curves: ``curves.csv``, and ``curves.png`` where matplotlib is. A
   round that has begun is finished, so that this part may end a round late.

Times are seconds of the clock, with the device waited for at both ends.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import mixing
import torch
from fl_labelskew_registry import LabelSkewError, RunError, mistake
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.table import markdown
from fl_labelskew_plugins.data.idx import FashionMNIST
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import read_lines, write_text
from fl_labelskew_plugins.machine.text import clean, comma_separated
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.environment import environment
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.studies import reproduce

ROOT = Path(__file__).parent.parent
CARRIED = ROOT / "carry" / "fashion-mnist"
SMALL, LARGE = "small CNN", "ResNet18"
NETWORKS = {SMALL: ROOT / "recipes/small/fedavg_fmnist.yaml", LARGE: Path("fedmr/table1_fmnist_p10c2_fedavg")}
SPLITS = {"P10C2": "fedmr/table1_fmnist_p10c2", "P5C2": "fedmr/table1_fmnist_p5c2"}
METHODS = ("fedavg", "fedmr", "fedlc", "fedrs", "fedshift")
PARTS = {
    "tests": "Tests on the device",
    "steps": "A client's step",
    "rounds": "A round, beside plain loops",
    "workers": "Workers on the one device",
    "scale": "FedMR's table 1",
}
ONE_EPOCH = [
    "train_args.epochs=1",
    "validation_args.frequency_of_the_test=0",
    "validation_args.personalised=false",
    "tracking_args.checkpoint_every=100000",
]
SAMPLES = 60
"""Training and test samples of a try."""


class Sizes(NamedTuple):
    """How much is measured.

    Args:
        turns: at most, of whatever is measured in turn.
        samples: of a client, at most, for the steps on ResNet18.
        large: what is set for ResNet18.
        batch: of the loop that is the limit.
        rounds: of a run with workers; the first one does not count.
        workers: how many share the device.
        shared: the networks that they train.
        tests: what pytest is told, beside the files.
        scale: what is set in the papers' recipes.
    """

    turns: int = 5
    samples: int = 1280
    large: Sequence[str] = ()
    batch: int = 1024
    rounds: int = 4
    workers: Sequence[int] = (1, 2, 4)
    shared: Sequence[str] = (SMALL, LARGE)
    tests: Sequence[str] = ("-m", "gpu")
    scale: Sequence[str] = ()


SMOKE = Sizes(
    turns=1,
    samples=4,
    large=("model_args.model=wide_resnet", "model_args.depth=10", "model_args.widen=1", "train_args.epochs=1"),
    batch=32,
    rounds=2,
    workers=(1,),
    shared=(LARGE,),
    tests=("-m", "not gpu", "-k", "cpu and fedmr"),
    scale=("model_args.model=lenet", "train_args.epochs=1", "train_args.comm_round=2"),
)


class Results:
    """What is measured, and written after each measurement: a line of JSON each, and tables to read."""

    def __init__(self, folder: Path, machine: Mapping[str, Any]) -> None:
        self.folder, self.machine = folder, dict(machine)
        folder.mkdir(parents=True, exist_ok=True)
        before, *self.lines = read_lines(folder / "results.jsonl") or [self.machine]
        if before != self.machine:
            raise mistake(f"--out {folder}", f"holds results of {before}", f"a new folder for {self.machine}")
        self.write()

    def has(self, part: str, name: str) -> bool:
        """Whether this is measured as a whole, and no test has failed."""
        rows = [line for line in self.lines if (line["part"], line["name"]) == (part, name)]
        return bool(rows) and not any({"missing", "why"} & row.keys() for row in rows)

    def add(self, part: str, name: str, rows: Sequence[Mapping[str, Any]], *, show: bool = True) -> None:
        """Keep a measurement in place of an earlier one; ``missing`` in a row: why it is not there."""
        self.lines = [line for line in self.lines if (line["part"], line["name"]) != (part, name)]
        self.lines += [{"part": part, "name": name} | row for row in rows]
        self.write()
        for row in rows if show else ():
            print(f"{part}, {name}: " + ", ".join(f"{key}: {shown(value)}" for key, value in row.items()), flush=True)

    def write(self) -> None:
        """Both files, each as a whole."""
        lines = [json.dumps(line) for line in (self.machine, *self.lines)]
        write_text(self.folder / "results.jsonl", "\n".join(lines) + "\n")
        text = [", ".join(f"{key} {value}" for key, value in self.machine.items())]
        for part, title in PARTS.items():
            rows = [line for line in self.lines if line["part"] == part]
            measured = [row for row in rows if "missing" not in row]
            head = list(dict.fromkeys(key for row in measured for key in row if key != "part"))
            text += [f"## {title}"] * bool(rows)
            text += [markdown(head, [[shown(row.get(key)) for key in head] for row in measured])] * bool(measured)
            text += [f"- not measured: {row['name']}: {row['missing']}" for row in rows if "missing" in row]
        write_text(self.folder / "results.md", "\n\n".join(text) + "\n")


class Plain:
    """A round as a careful loop of one's own has it, on the same samples and device, with none of our code.

    Args:
        made: whose samples, network and settings it takes; the network is copied.
        cast: whether to compute in bf16.
    """

    def __init__(self, made: session.Session, *, cast: bool) -> None:
        self.x, self.y = made.trainer.train.x, made.trainer.train.y
        self.clients, self.train, self.cast = list(made.trainer.indices.values()), made.recipe.train, cast
        self.net = copy.deepcopy(made.trainer.model).to(memory_format=torch.channels_last)
        self.mean, self.std = (torch.tensor(v, device=self.y.device).reshape(-1, 1, 1) for v in (made.mean, made.std))
        self.weights = {name: value.clone() for name, value in self.net.state_dict().items()}

    def fit(self, index: Tensor, batch: int) -> None:
        """Train on these samples for all epochs."""
        optimizer = torch.optim.SGD(
            self.net.parameters(),
            lr=self.train.learning_rate,
            momentum=self.train.momentum,
            weight_decay=self.train.weight_decay,
            fused=True,
        )
        self.net.train()
        torch.backends.cudnn.benchmark = True
        for _ in range(self.train.epochs):
            for part in index[torch.randperm(len(index), device=index.device)].split(batch):
                inputs = ((self.x[part].float() / 255 - self.mean) / self.std).contiguous(
                    memory_format=torch.channels_last
                )
                with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.cast):
                    loss = cross_entropy(self.net(inputs), self.y[part])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        torch.backends.cudnn.benchmark = False  # torch's default, which is ours

    def round(self) -> None:
        """Every client from the same weights, then their mean."""
        total = sum(len(index) for index in self.clients)
        mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in self.weights.items()}
        for index in self.clients:
            self.net.load_state_dict(self.weights)
            self.fit(index, self.train.batch_size)
            for name, value in self.net.state_dict().items():
                mean[name].add_(value, alpha=len(index) / total)
        self.weights = {name: value.to(self.weights[name].dtype) for name, value in mean.items()}

    def limit(self, batch: int) -> None:
        """All samples at once, in large batches."""
        self.fit(torch.cat(self.clients), batch)


class Bench:
    """All measurements, on one device and within one time; ``data``: a folder with Fashion-MNIST."""

    def __init__(self, *, smoke: bool, seconds: float, out: Path, begun: float, data: Path | None) -> None:
        self.sizes, self.out, self.end = SMOKE if smoke else Sizes(), out, begun + seconds
        self.device = torch.device("cpu" if smoke else "cuda")
        self.common = ["device_args.threads=1" if smoke else "device_args.using_gpu=true"]
        if data is not None:
            self.common.append(f"data_args.data_cache_dir={data}")
        known = environment(self.device)
        self.results = Results(out, {"device": known["device"], "python": known["python"]} | known["versions"])

    def overrides(self, network: str, *more: str) -> list[str]:
        """Of the recipe of a network."""
        return [*self.common, *(self.sizes.large if network == LARGE else ()), *more]

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    def run(self) -> None:
        """All measurements in order; failures are recorded, and the others continue."""
        self.measure("tests", "marked gpu", self.tests)
        for network in NETWORKS:
            self.measure("steps", network, partial(self.steps, network))
        for precision, network in itertools.product(("bf16", "fp32"), NETWORKS):
            self.measure("rounds", f"{network}, {precision}", partial(self.rounds, network, precision))
        for network in self.sizes.shared:
            self.measure("workers", network, partial(self.workers, network))
        self.scale()

    def measure(self, part: str, name: str, measurement: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """One measurement, unless it exists already or no time is left."""
        if self.results.has(part, name):
            return
        print(f"{part}, {name} ({max(0.0, self.left):.0f} s left) ...", file=sys.stderr, flush=True)
        rows: Sequence[Mapping[str, Any]] = [{"missing": "no time was left"}]
        if self.left > 0:
            try:
                rows = measurement()
            except Exception as error:
                said = " ".join(f"{type(error).__name__}: {error}".split())
                rows = [{"missing": clean(said, 500)}]
        self.results.add(part, name, rows)

    def clock(self) -> float:
        """Seconds, after the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def turns(self) -> Iterator[int]:
        """Turn after turn, one at least, as long as there is time for another like the last."""
        for turn in range(self.sizes.turns):
            begun = time.monotonic()
            yield turn
            if self.left < time.monotonic() - begun:
                return

    def tests(self) -> list[dict[str, Any]]:
        """Of each marked test that fails the reason, and how many did not."""
        files = [file for file in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
            done = self.process([*command, *self.sizes.tests, *map(str, files)])
            if not report.exists():
                raise RunError(f"pytest ended with exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
            cases = list(ElementTree.parse(report).iter("testcase"))
        kinds = ("error", "failure")
        wrong = [(case, reason) for case in cases for kind in kinds if (reason := case.find(kind)) is not None]
        rows = [
            {"test": case.get("name"), "why": clean(reason.get("message", "").split("\n")[0], 300)}
            for case, reason in wrong
        ]
        skipped = sum(case.find("skipped") is not None for case in cases)
        counts = {"passed": len(cases) - len(rows) - skipped, "failed": len(rows), "skipped": skipped}
        return [{"test": "all"} | counts, *rows]

    def process(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command, for as long as there is time, with all of the device's memory that is not in use here.

        Raises:
            RunError: it took longer.
        """
        torch.cuda.empty_cache()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output = process.communicate(timeout=max(1.0, self.left))
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own processes, too
            process.communicate()
            raise RunError("the time was up") from None
        return subprocess.CompletedProcess(command, process.returncode, *output)

    def steps(self, network: str) -> list[dict[str, Any]]:
        """Milliseconds of a client's step in each case, taken in turn."""
        cases, samples = mixing.cases_of(), None
        if network == LARGE:
            cases = {case: cases[case] for case in ("FedAvg", *METHODS, mixing.RUNNING)}
            samples = self.sizes.samples
        ready = mixing.prepared(NETWORKS[network], self.overrides(network), cases, samples)
        seconds: dict[str, list[float]] = {case: [] for case in ready}
        for turn in self.turns():
            for case, clients in ready.items():
                seconds[case].append(clients.second_round(turn % 2, self.clock) / clients.steps(turn % 2))
        return [
            {
                "case": case,
                "ms": 1000 * statistics.median(row),
                "beside FedAvg": medians(row, seconds["FedAvg"]),
                "turns": len(row),
            }
            for case, row in seconds.items()
        ]

    def rounds(self, network: str, precision: str) -> list[dict[str, Any]]:
        """Seconds of a round of ours, of the two plain loops and of a test, taken in turn, once all have run once."""
        more = (*ONE_EPOCH, "train_args.comm_round=100000", f"device_args.precision={precision}")
        made = session.build(parse.load(NETWORKS[network], self.overrides(network, *more)))
        with tempfile.TemporaryDirectory() as folder:
            record = Record(made, RunFolder(Path(folder)), Progress(), resume=False)
            ours, plain = Simulation(record), Plain(made, cast=precision == "bf16")
            lines = iter(ours)
            actions: dict[str, Callable[[], object]] = {
                "ours": lambda: next(lines),
                "plain": plain.round,
                "limit": lambda: plain.limit(self.sizes.batch),
                "test": lambda: ours.rounds.evaluate(None),
            }
            for action in actions.values():
                action()
            seconds: dict[str, list[float]] = {name: [] for name in actions}
            memory = dict.fromkeys(actions, 0.0)
            for _ in self.turns():
                for name, action in actions.items():
                    before, begun = self.allocated(), self.clock()
                    action()
                    seconds[name].append(self.clock() - begun)
                    memory[name] = max(memory[name], self.peak() - before)
        median = {name: statistics.median(row) for name, row in seconds.items()}
        row = {f"{name}, s": median[name] for name in actions}
        row |= {f"ours / {name}": medians(seconds["ours"], seconds[name]) for name in ("plain", "limit")}
        row["test, share"] = median["test"] / (median["test"] + median["ours"])
        if self.device.type == "cuda":
            row |= {f"{name}, MB": memory[name] for name in ("ours", "plain", "limit")}
        return [row | {"turns": len(seconds["ours"])}]

    def allocated(self) -> float:
        """MB on the device, from where its peak is counted anew."""
        if self.device.type != "cuda":
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6

    def peak(self) -> float:
        """The most MB on the device since then."""
        return torch.cuda.max_memory_allocated() / 1e6 if self.device.type == "cuda" else 0.0

    def workers(self, network: str) -> list[dict[str, Any]]:
        """Seconds of a round in one process, and over MPI with several workers, each by a separate command."""
        if shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None:
            raise RunError("there is no mpirun here, or no mpi4py")
        rows: list[dict[str, Any]] = []
        for number in (0, *self.sizes.workers):
            try:
                seconds = self.timed(network, number)
            except RunError as error:
                rows.append({"missing": f"{number or 'no'} workers: {error}"})
                continue
            median = statistics.median(seconds)
            alone = rows[0].get("s") if rows else median
            ratio = alone and median / alone
            rows.append({"workers": number or "sp", "s": median, "beside sp": ratio, "rounds": len(seconds)})
        return rows

    def timed(self, network: str, workers: int) -> list[float]:
        """Seconds of all rounds but the first, as a user's command has them; no worker: in one process."""
        overrides = self.overrides(network, *ONE_EPOCH, f"train_args.comm_round={self.sizes.rounds}")
        if workers:
            overrides += ["comm_args.backend=MPI", f"comm_args.workers={workers}"]
            overrides += [f"device_args.workers_per_gpu={workers}"]
        with tempfile.TemporaryDirectory() as name:
            folder = RunFolder(Path(name) / "run")
            sets = [word for override in overrides for word in ("--set", override)]
            command = [
                sys.executable,
                "-m",
                "fl_labelskew_plugins.cli.main",
                "run",
                str(NETWORKS[network]),
                "--host",
                "none",
            ]
            done = self.process([*command, "--run-dir", str(folder.path), "--quiet", *sets])
            if done.returncode:
                raise RunError(f"exit code {done.returncode}: {done.stderr[-300:]}")
            return [float(line["seconds"]) for line in read_lines(folder.timings)[1:]]

    def scale(self) -> None:
        """FedMR's table 1, on to where the time goes."""
        if self.left <= 0:
            return
        everything = list(itertools.starmap(self.experiment, itertools.product(SPLITS, METHODS)))
        chosen, sitting = everything, ""

        def print_line(line: str) -> None:
            nonlocal sitting
            sitting = line.partition(",")[0]
            print(line, flush=True)
            self.write_scale(everything, show=False)

        while chosen:
            try:
                reproduce.run_all(chosen, print_line, quiet=True, until=time.monotonic() + self.left)
                break
            except RunError as error:  # the others continue
                log.error(f"{sitting}: {error.shown()}")
                chosen = [experiment for experiment in chosen if experiment.name != sitting]
        self.write_scale(everything)

    def experiment(self, split: str, method: str) -> reproduce.Experiment:
        """A run of the table, or one as FedAvg's, with another method and no number to compare with."""
        of_table = method in ("fedavg", "fedmr")
        path = Path(SPLITS[split] + ("" if method == "fedmr" else "_fedavg"))
        overrides = [*self.common, "tracking_args.checkpoint_every=1", *self.sizes.scale]
        overrides += [] if of_table else [f"method_args.method={method}"]
        (made,) = reproduce.experiments({f"{split}/{method}": path}, overrides, self.out / "scale", 1)
        return made if of_table else replace(made, recipe=made.recipe.model_copy(update={"expected": []}))

    def write_scale(self, experiments: Sequence[reproduce.Experiment], *, show: bool = True) -> None:
        """The table and the curves, as far as the runs are."""
        begun = [experiment for experiment in experiments if experiment.runs[0].folder.lines]
        rows = [dict(zip(reproduce.HEAD, row, strict=True)) for one in begun for row in reproduce.rows(one)]
        kept = ("recipe", "expected", "ours", "difference", "verdict", "rounds", "seconds")
        curves: dict[str, dict[str, dict[int, list[float]]]] = {}
        for experiment in begun:
            split, _, method = experiment.name.partition("/")
            lines = [line for line in experiment.runs[0].folder.lines if "accuracy" in line]
            curves.setdefault(split, {})[method] = {line["round"] + 1: [line["accuracy"]] for line in lines}
        if not begun:
            return
        self.results.add("scale", "seed 0", [{key: row[key] for key in kept} for row in rows], show=show)
        points = [
            [split, method, str(round), f"{accuracy:.4f}"]
            for split, methods in curves.items()
            for method, rounds in methods.items()
            for round, (accuracy,) in rounds.items()
        ]
        write_text(self.out / "curves.csv", comma_separated(("split", "method", "round", "accuracy"), points) + "\n")
        if importlib.util.find_spec("matplotlib") is not None:
            plots.of_run(self.out / "curves.png", lambda: plots.compare(curves, self.out / "curves.png"))


def shown(value: object) -> str:
    """A cell."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def medians(row: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios of what was taken in turn."""
    return statistics.median(a / b for a, b in zip(row, other, strict=True))


@guarded
def main() -> None:
    """Measure, print and write."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all of it; default: 10")
    parser.add_argument(
        "--out", type=Path, help="folder of what it writes; default: runs/gpu, or with --smoke one that is deleted"
    )
    parser.add_argument("--smoke", action="store_true", help="all of it, tiny, on a CPU")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes:g}: no time; use a number above 0")
    if not options.smoke and not torch.cuda.is_available():
        raise LabelSkewError("no GPU that torch can use; use --smoke to try all of this on a CPU")
    with tempfile.TemporaryDirectory() as folder:
        out = (options.out or Path(folder if options.smoke else ROOT / "runs" / "gpu")).resolve()
        data = CARRIED if CARRIED.is_dir() else None
        if options.smoke:
            data = out / "data"
            if not data.exists():
                FashionMNIST().fake(data, samples=SAMPLES, seed=0)
        Bench(smoke=options.smoke, seconds=60 * options.minutes, out=out, begun=begun, data=data).run()
        print((out / "results.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
