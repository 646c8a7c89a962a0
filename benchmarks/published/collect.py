"""Add the finished runs of a sweep to the table of our runs for a published table; skip runs that it contains.

python benchmarks/published/collect.py niid_bench runs/sweep_niid_bench
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path

from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.studies.finished import read_all

HERE = Path(__file__).parent
COLUMNS = ("setting", "method", "seed", "rounds", "best", "last", "hours", "torch")
"""Names as in the published table; accuracies in per cent (last: mean of the last 5 tests)."""


def collect(file: Path, runs: list[Path]) -> list[dict[str, str]]:
    """The lines of the file, and one line for each new complete run below these folders."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    if file.exists():
        lines = {_key(line): line for line in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))}
    for run in read_all(runs)[0]:
        if not run.complete:
            continue
        setting, method, _ = Path(run.name).name.split("-")  # the folder name contains the values of the sweep's axes
        versions = json.loads((Path(run.name) / "environment.json").read_text(encoding="utf-8"))["versions"]
        hours = sum(float(line["seconds"]) for line in run.timings) / 3600
        cells = (f"{100 * run.best:.2f}", f"{100 * (run.accuracy(5) or 0.0):.2f}", f"{hours:.2f}", versions["torch"])
        line = dict(zip(COLUMNS, (setting, method, run.seed, str(run.planned), *cells), strict=True))
        lines.setdefault(_key(line), line)
    return sorted(lines.values(), key=_key)


def _key(line: dict[str, str]) -> tuple[str, ...]:
    return tuple(line[column] for column in COLUMNS[:4])


def main() -> None:
    """Parse the arguments, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="name of a CSV file in this folder, without .csv")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    args = parser.parse_args()
    file = HERE / f"{args.table}.csv"
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(collect(file, args.runs))
    write_text(file, text.getvalue())
    print(text.getvalue(), end="")


if __name__ == "__main__":
    main()
