"""Measure the engine on a GPU: tests, training steps, rounds, and runs of a paper's table within a time limit.

    python benchmarks/gpu.py                 # at most 10 minutes; run it again to resume
    python benchmarks/gpu.py --minutes 28    # in one go
    python benchmarks/gpu.py --smoke         # a minute on a CPU: all parts in a tiny form; the numbers mean nothing

It needs a checkout, torch for CUDA and torchvision. On a machine without network and without other packages, use the
files that ``python tools/carry.py`` writes to ``carry/``:

    python3 -m pip install -q --no-index --no-deps --upgrade --target /tmp/site carry/*.whl &&
    PYTHONPATH=/tmp/site python3 benchmarks/gpu.py

The parts run in this order. Each result is written to ``results.jsonl`` and ``results.md`` in the folder ``--out`` when
it is complete. Completed measurements are not repeated.

1. tests: the tests marked ``gpu``.
2. steps: milliseconds of a client's step (time of a client's round / its steps). Every method and optimiser on the CNN
   of FedLC's table 8 (as in benchmarks/mixing.py); the methods of part 4 on ResNet18, with batches of 128, the paper's
   epochs and fewer samples. The cases alternate; the table shows medians of times and of ratios to FedAvg.
3. rounds: our rounds without a test, compared with two loops over the same samples, with the same precision and one
   epoch: (a) a plain loop with the same batches, channels last, fused SGD and cuDNN's benchmark mode; (b) one loop with
   batches of 1,024 (the limit). They alternate; the table shows medians of times and of ratios, the share of a test in
   a round, and the peak memory on the device minus the memory before the round.
   workers: 1, 2 and 4 MPI workers on one device.
4. scale: FedMR's table 1 on Fashion-MNIST, ResNet18, 10 epochs, batches of 128, seed 0: P10C2 and P5C2 with FedAvg,
   FedMR, FedLC, FedRS and FedShift. The last three use FedAvg's recipes and their own defaults. All runs advance to the
   same round, and resume from their checkpoints. The last round is always completed, so this part can exceed the time
   limit by one round. It writes ``curves.csv`` and, if matplotlib is installed, ``curves.png``.

Times are wall seconds, synchronised with the device before and after.
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
    "steps": "Steps of a client",
    "rounds": "Rounds compared with plain loops",
    "workers": "Workers on one device",
    "scale": "FedMR's table 1",
}
ONE_EPOCH = [
    "train_args.epochs=1",
    "validation_args.frequency_of_the_test=0",
    "validation_args.personalised=false",
    "tracking_args.checkpoint_every=100000",
]
SAMPLES = 60
"""Training and test samples with ``--smoke``."""


class Sizes(NamedTuple):
    """Sizes of the measurements.

    Args:
        repetitions: maximum for cases that alternate.
        max_samples: per client, for the steps on ResNet18.
        resnet18_keys: overrides of the recipe for ResNet18.
        limit_batch: batch size of the loop that is the limit.
        worker_rounds: rounds of a run with workers; the first is not measured.
        workers: numbers of workers that share the device.
        worker_networks: networks of these runs.
        pytest_options: in addition to the files.
        scale_keys: overrides of the paper's recipes.
    """

    repetitions: int = 5
    max_samples: int = 1280
    resnet18_keys: Sequence[str] = ()
    limit_batch: int = 1024
    worker_rounds: int = 4
    workers: Sequence[int] = (1, 2, 4)
    worker_networks: Sequence[str] = (SMALL, LARGE)
    pytest_options: Sequence[str] = ("-m", "gpu")
    scale_keys: Sequence[str] = ()


SMOKE = Sizes(
    repetitions=1,
    max_samples=4,
    resnet18_keys=("model_args.model=wide_resnet", "model_args.depth=10", "model_args.widen=1", "train_args.epochs=1"),
    limit_batch=32,
    worker_rounds=2,
    workers=(1,),
    worker_networks=(LARGE,),
    pytest_options=("-m", "not gpu", "-k", "cpu and fedmr"),
    scale_keys=("model_args.model=lenet", "train_args.epochs=1", "train_args.comm_round=2"),
)


class Results:
    """The results in ``results.jsonl`` and ``results.md``, which are written after each measurement."""

    def __init__(self, folder: Path, machine: Mapping[str, Any]) -> None:
        self.folder, self.machine = folder, dict(machine)
        folder.mkdir(parents=True, exist_ok=True)
        machine, *self.lines = read_lines(folder / "results.jsonl") or [self.machine]
        if machine != self.machine:
            raise mistake(f"--out {folder}", f"contains results of {machine}", f"a new folder for {self.machine}")
        self.write()

    def is_complete(self, part: str, name: str) -> bool:
        """Whether this measurement is complete and contains no failed test."""
        rows = [line for line in self.lines if (line["part"], line["name"]) == (part, name)]
        return bool(rows) and not any({"missing", "failure"} & row.keys() for row in rows)

    def add(self, part: str, name: str, rows: Sequence[Mapping[str, Any]], *, show: bool = True) -> None:
        """Store a measurement, and replace an earlier one; ``missing`` in a row: the reason why it was not measured."""
        self.lines = [line for line in self.lines if (line["part"], line["name"]) != (part, name)]
        self.lines += [{"part": part, "name": name} | row for row in rows]
        self.write()
        for row in rows if show else ():
            print(f"{part}, {name}: " + ", ".join(f"{key}: {cell(value)}" for key, value in row.items()), flush=True)

    def write(self) -> None:
        """Write both files."""
        lines = [json.dumps(line) for line in (self.machine, *self.lines)]
        write_text(self.folder / "results.jsonl", "\n".join(lines) + "\n")
        text = [", ".join(f"{key} {value}" for key, value in self.machine.items())]
        for part, title in PARTS.items():
            rows = [line for line in self.lines if line["part"] == part]
            measured = [row for row in rows if "missing" not in row]
            head = list(dict.fromkeys(key for row in measured for key in row if key != "part"))
            text += [f"## {title}"] * bool(rows)
            text += [markdown(head, [[cell(row.get(key)) for key in head] for row in measured])] * bool(measured)
            text += [f"- not measured: {row['name']}: {row['missing']}" for row in rows if "missing" in row]
        write_text(self.folder / "results.md", "\n\n".join(text) + "\n")


class PlainLoop:
    """An optimised training loop without this package, on the same samples and device.

    Args:
        built: the session with the samples, the network (which is copied) and the settings.
        bf16: whether to compute in bf16.
    """

    def __init__(self, built: session.Session, *, bf16: bool) -> None:
        self.x, self.y = built.trainer.train.x, built.trainer.train.y
        self.clients, self.train, self.bf16 = list(built.trainer.indices.values()), built.recipe.train, bf16
        self.net = copy.deepcopy(built.trainer.model).to(memory_format=torch.channels_last)
        self.mean, self.std = (torch.tensor(v, device=self.y.device).reshape(-1, 1, 1) for v in (built.mean, built.std))
        self.weights = {name: value.clone() for name, value in self.net.state_dict().items()}

    def fit(self, index: Tensor, batch: int) -> None:
        """Train for all epochs on the samples with these indices, of shape (n,)."""
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
                with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                    loss = cross_entropy(self.net(inputs), self.y[part])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        torch.backends.cudnn.benchmark = False  # torch's default, which our code uses

    def round(self) -> None:
        """Train all clients from the same weights, and average the results."""
        total = sum(len(index) for index in self.clients)
        mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in self.weights.items()}
        for index in self.clients:
            self.net.load_state_dict(self.weights)
            self.fit(index, self.train.batch_size)
            for name, value in self.net.state_dict().items():
                mean[name].add_(value, alpha=len(index) / total)
        self.weights = {name: value.to(self.weights[name].dtype) for name, value in mean.items()}

    def limit(self, batch: int) -> None:
        """Train on the samples of all clients in large batches."""
        self.fit(torch.cat(self.clients), batch)


class Bench:
    """All measurements, on one device and within one time limit; ``data``: a folder with Fashion-MNIST."""

    def __init__(self, *, smoke: bool, seconds: float, out: Path, start_time: float, data: Path | None) -> None:
        self.sizes, self.out, self.end = SMOKE if smoke else Sizes(), out, start_time + seconds
        self.device = torch.device("cpu" if smoke else "cuda")
        self.common = ["device_args.threads=1" if smoke else "device_args.using_gpu=true"]
        if data is not None:
            self.common.append(f"data_args.data_cache_dir={data}")
        facts = environment(self.device)
        self.results = Results(out, {"device": facts["device"], "python": facts["python"]} | facts["versions"])

    def overrides(self, network: str, *additional: str) -> list[str]:
        """Overrides of a network's recipe."""
        return [*self.common, *(self.sizes.resnet18_keys if network == LARGE else ()), *additional]

    @property
    def remaining(self) -> float:
        """Seconds until the time limit."""
        return self.end - time.monotonic()

    def run(self) -> None:
        """Run all measurements in order; record failures, and continue with the next."""
        self.measure("tests", "marked gpu", self.tests)
        for network in NETWORKS:
            self.measure("steps", network, partial(self.steps, network))
        for precision, network in itertools.product(("bf16", "fp32"), NETWORKS):
            self.measure("rounds", f"{network}, {precision}", partial(self.rounds, network, precision))
        for network in self.sizes.worker_networks:
            self.measure("workers", network, partial(self.workers, network))
        self.scale()

    def measure(self, part: str, name: str, measurement: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Run one measurement, unless it is complete or the time limit is reached."""
        if self.results.is_complete(part, name):
            return
        print(f"{part}, {name} ({max(0.0, self.remaining):.0f} s remaining) ...", file=sys.stderr, flush=True)
        rows: Sequence[Mapping[str, Any]] = [{"missing": "time limit reached"}]
        if self.remaining > 0:
            try:
                rows = measurement()
            except Exception as error:
                message = " ".join(f"{type(error).__name__}: {error}".split())
                rows = [{"missing": clean(message, 500)}]
        self.results.add(part, name, rows)

    def clock(self) -> float:
        """Wall seconds, after waiting for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def repetitions(self) -> Iterator[int]:
        """Yield the numbers of repetitions: at least one, then while the time suffices for another of equal length."""
        for repetition in range(self.sizes.repetitions):
            start_time = time.monotonic()
            yield repetition
            if self.remaining < time.monotonic() - start_time:
                return

    def tests(self) -> list[dict[str, Any]]:
        """Run the marked tests; a row with the numbers, and a row with the message of each failed test."""
        files = [file for file in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
            result = self.process([*command, *self.sizes.pytest_options, *map(str, files)])
            if not report.exists():
                output = (result.stdout + result.stderr)[-300:]
                raise RunError(f"pytest ended with exit code {result.returncode}: {output}")
            cases = list(ElementTree.parse(report).iter("testcase"))
        kinds = ("error", "failure")
        failed = [(case, reason) for case in cases for kind in kinds if (reason := case.find(kind)) is not None]
        rows = [
            {"test": case.get("name"), "failure": clean(reason.get("message", "").split("\n")[0], 300)}
            for case, reason in failed
        ]
        skipped = sum(case.find("skipped") is not None for case in cases)
        counts = {"passed": len(cases) - len(rows) - skipped, "failed": len(rows), "skipped": skipped}
        return [{"test": "all"} | counts, *rows]

    def process(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command within the time limit, after releasing unused device memory of this process.

        Raises:
            RunError: the time limit was reached.
        """
        torch.cuda.empty_cache()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output = process.communicate(timeout=max(1.0, self.remaining))
        except subprocess.TimeoutExpired:
            process.terminate()  # also ends its child processes
            process.communicate()
            raise RunError("time limit reached") from None
        return subprocess.CompletedProcess(command, process.returncode, *output)

    def steps(self, network: str) -> list[dict[str, Any]]:
        """Milliseconds of a client's step in each case; the cases alternate."""
        cases, samples = mixing.all_cases(), None
        if network == LARGE:
            cases = {case: cases[case] for case in ("FedAvg", *METHODS, mixing.RUNNING)}
            samples = self.sizes.max_samples
        prepared = mixing.prepare(NETWORKS[network], self.overrides(network), cases, samples)
        seconds: dict[str, list[float]] = {case: [] for case in prepared}
        for repetition in self.repetitions():
            for case, clients in prepared.items():
                seconds[case].append(clients.second_round(repetition % 2, self.clock) / clients.steps(repetition % 2))
        return [
            {
                "case": case,
                "ms": 1000 * statistics.median(row),
                "time / FedAvg": median_ratio(row, seconds["FedAvg"]),
                "repetitions": len(row),
            }
            for case, row in seconds.items()
        ]

    def rounds(self, network: str, precision: str) -> list[dict[str, Any]]:
        """Seconds of our round, the two plain loops and a test; they alternate, after one warm-up of each."""
        run_overrides = (*ONE_EPOCH, "train_args.comm_round=100000", f"device_args.precision={precision}")
        built = session.build(parse.load(NETWORKS[network], self.overrides(network, *run_overrides)))
        with tempfile.TemporaryDirectory() as folder:
            record = Record(built, RunFolder(Path(folder)), Progress(), resume=False)
            ours, plain = Simulation(record), PlainLoop(built, bf16=precision == "bf16")
            rounds = iter(ours)
            actions: dict[str, Callable[[], object]] = {
                "ours": lambda: next(rounds),
                "plain": plain.round,
                "limit": lambda: plain.limit(self.sizes.limit_batch),
                "test": lambda: ours.rounds.evaluate(None),
            }
            for action in actions.values():
                action()
            seconds: dict[str, list[float]] = {name: [] for name in actions}
            memory = dict.fromkeys(actions, 0.0)
            for _ in self.repetitions():
                for name, action in actions.items():
                    before, start_time = self.allocated(), self.clock()
                    action()
                    seconds[name].append(self.clock() - start_time)
                    memory[name] = max(memory[name], self.peak() - before)
        median = {name: statistics.median(row) for name, row in seconds.items()}
        row = {f"{name}, s": median[name] for name in actions}
        row |= {f"ours / {name}": median_ratio(seconds["ours"], seconds[name]) for name in ("plain", "limit")}
        row["test, share"] = median["test"] / (median["test"] + median["ours"])
        if self.device.type == "cuda":
            row |= {f"{name}, MB": memory[name] for name in ("ours", "plain", "limit")}
        return [row | {"repetitions": len(seconds["ours"])}]

    def allocated(self) -> float:
        """Allocated MB on the device; resets the peak."""
        if self.device.type != "cuda":
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6

    def peak(self) -> float:
        """Peak of allocated MB on the device since the last reset."""
        return torch.cuda.max_memory_allocated() / 1e6 if self.device.type == "cuda" else 0.0

    def workers(self, network: str) -> list[dict[str, Any]]:
        """Seconds of a round in one process and with each number of MPI workers; each run is a separate command."""
        if shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None:
            raise RunError("mpirun or mpi4py is not installed")
        rows: list[dict[str, Any]] = []
        for number in (0, *self.sizes.workers):
            try:
                seconds = self.round_seconds(network, number)
            except RunError as error:
                rows.append({"missing": f"workers {number or 'sp'}: {error}"})
                continue
            median = statistics.median(seconds)
            sp = rows[0].get("s") if rows else median
            ratio = sp and median / sp
            rows.append({"workers": number or "sp", "s": median, "time / sp": ratio, "rounds": len(seconds)})
        return rows

    def round_seconds(self, network: str, workers: int) -> list[float]:
        """Seconds of all rounds except the first of ``labelskew run``; 0 workers: in one process."""
        overrides = self.overrides(network, *ONE_EPOCH, f"train_args.comm_round={self.sizes.worker_rounds}")
        if workers:
            overrides += ["comm_args.backend=MPI", f"comm_args.workers={workers}"]
            overrides += [f"device_args.workers_per_gpu={workers}"]
        with tempfile.TemporaryDirectory() as name:
            folder = RunFolder(Path(name) / "run")
            sets = [word for override in overrides for word in ("--set", override)]
            command = [sys.executable, "-m", "fl_labelskew_plugins.cli.main", "run", str(NETWORKS[network])]
            result = self.process([*command, "--host", "none", "--run-dir", str(folder.path), "--quiet", *sets])
            if result.returncode:
                raise RunError(f"exit code {result.returncode}: {result.stderr[-300:]}")
            return [float(line["seconds"]) for line in read_lines(folder.timings)[1:]]

    def scale(self) -> None:
        """Run or resume FedMR's table 1 until the time limit."""
        if self.remaining <= 0:
            return
        experiments = list(itertools.starmap(self.experiment, itertools.product(SPLITS, METHODS)))
        active, current = experiments, ""

        def print_line(line: str) -> None:
            nonlocal current
            current = line.partition(",")[0]
            print(line, flush=True)
            self.write_scale(experiments, show=False)

        while active:
            try:
                reproduce.run_all(active, print_line, quiet=True, until=time.monotonic() + self.remaining)
                break
            except RunError as error:  # the others continue
                log.error(f"{current}: {error.shown()}")
                active = [experiment for experiment in active if experiment.name != current]
        self.write_scale(experiments)

    def experiment(self, split: str, method: str) -> reproduce.Experiment:
        """A run of the table; for other methods FedAvg's recipe with this method, without an expected number."""
        in_table = method in ("fedavg", "fedmr")
        path = Path(SPLITS[split] + ("" if method == "fedmr" else "_fedavg"))
        overrides = [*self.common, "tracking_args.checkpoint_every=1", *self.sizes.scale_keys]
        overrides += [] if in_table else [f"method_args.method={method}"]
        (experiment,) = reproduce.experiments({f"{split}/{method}": path}, overrides, self.out / "scale", 1)
        without_expected = experiment.recipe.model_copy(update={"expected": []})
        return experiment if in_table else replace(experiment, recipe=without_expected)

    def write_scale(self, experiments: Sequence[reproduce.Experiment], *, show: bool = True) -> None:
        """Write the table and the curves of the completed rounds."""
        started = [experiment for experiment in experiments if experiment.runs[0].folder.lines]
        rows = [dict(zip(reproduce.HEAD, row, strict=True)) for run in started for row in reproduce.rows(run)]
        columns = ("recipe", "expected", "ours", "difference", "verdict", "rounds", "seconds")
        curves: dict[str, dict[str, dict[int, list[float]]]] = {}
        for experiment in started:
            split, _, method = experiment.name.partition("/")
            lines = [line for line in experiment.runs[0].folder.lines if "accuracy" in line]
            curves.setdefault(split, {})[method] = {line["round"] + 1: [line["accuracy"]] for line in lines}
        if not started:
            return
        self.results.add("scale", "seed 0", [{key: row[key] for key in columns} for row in rows], show=show)
        points = [
            [split, method, str(round), f"{accuracy:.4f}"]
            for split, methods in curves.items()
            for method, rounds in methods.items()
            for round, (accuracy,) in rounds.items()
        ]
        write_text(self.out / "curves.csv", comma_separated(("split", "method", "round", "accuracy"), points) + "\n")
        if importlib.util.find_spec("matplotlib") is not None:
            plots.of_run(self.out / "curves.png", lambda: plots.compare(curves, self.out / "curves.png"))


def cell(value: object) -> str:
    """A table cell; floats have four digits."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def median_ratio(row: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios of two alternating measurements."""
    return statistics.median(a / b for a, b in zip(row, other, strict=True))


@guarded
def main() -> None:
    """Parse the options, run all measurements and print the results."""
    start_time = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit for all parts; default: 10")
    parser.add_argument(
        "--out", type=Path, help="folder of the results; default: runs/gpu, or a temporary folder with --smoke"
    )
    parser.add_argument("--smoke", action="store_true", help="all parts in a tiny form on a CPU")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes:g}: expected a number > 0")
    if not options.smoke and not torch.cuda.is_available():
        raise LabelSkewError("torch finds no usable GPU; use --smoke to check the benchmark on a CPU")
    with tempfile.TemporaryDirectory() as folder:
        out = (options.out or Path(folder if options.smoke else ROOT / "runs" / "gpu")).resolve()
        data = CARRIED if CARRIED.is_dir() else None
        if options.smoke:
            data = out / "data"
            if not data.exists():
                FashionMNIST().fake(data, samples=SAMPLES, seed=0)
        Bench(smoke=options.smoke, seconds=60 * options.minutes, out=out, start_time=start_time, data=data).run()
        print((out / "results.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
