"""The program of the ranks in a hand-typed mpirun: several runs, and afterwards the costs of each.

Arguments: RECIPE JOBS OUT; JOBS maps names to overrides, and OUT gets a folder for each name.
"""

import json
import re
import sys
from pathlib import Path

from memory import Peak

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.engine.local import LocalTrainer
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.runtimes.mpi.rank import as_rank
from fl_labelskew_plugins.runtimes.mpi.runtime import MPIServer
from fl_labelskew_plugins.runtimes.options import RunOptions


def over_mpi(forker, folder, text, jobs, **more):
    """The result of an mpirun of these jobs of a recipe in the folder."""
    (folder / "recipe.yaml").write_text(text)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    return forker.mpirun(__file__, [folder / "recipe.yaml", folder / "jobs.json", folder], **more)


def same_bytes(one, other):
    """All numbers of two runs; a checkpoint also holds the seconds that it took."""
    files = sorted(str(file.relative_to(one)) for file in one.rglob("*") if file.is_file())
    assert files == sorted(str(file.relative_to(other)) for file in other.rglob("*") if file.is_file())
    for name in files:
        if name.endswith((".jsonl", ".safetensors")) and name not in ("timings.jsonl", "checkpoint/latest.safetensors"):
            a, b = ((folder / name).read_bytes() for folder in (one, other))
            if name == "privacy.jsonl":  # its lines contain the time and the run's name
                a, b = (re.sub(rb'"(time|run)": "[^"]*"', b"", content) for content in (a, b))
            assert a == b, name


tested = []
"""Samples of each test in this rank."""


def counted(predict):
    def wrapped(self, *args, **named):
        logits, labels = predict(self, *args, **named)
        tested.append(len(labels))
        return logits, labels

    return wrapped


under_way = []
"""Uploads that this rank, as the server, has had dealt and not added, after each deal."""
dealt = []
"""Clients of each deal."""


def watched(deal):
    def wrapped(self, *args):
        waiting = set(self._waiting)
        deal(self, *args)
        dealt.append(sorted(waiting.difference(self._waiting)))
        under_way.append(self._in_progress)

    return wrapped


def main():
    with as_rank():
        recipe, jobs, out = map(Path, sys.argv[1:])
        rank = mpi_rank()[0]
        LocalTrainer.predict = counted(LocalTrainer.predict)
        MPIServer._assign = watched(MPIServer._assign)
        for name, overrides in json.loads(jobs.read_text()).items():
            tested.clear()
            under_way.clear()
            dealt.clear()
            peak = Peak("self")
            start(RunOptions(recipe, overrides, run_dir=out / name, quiet=True))
            costs = {"tested": sum(tested), "memory": peak.end()[0], "under_way": max(under_way, default=0)}
            costs["first"] = dealt[0] if dealt else []
            (out / f"{name}-{rank}.json").write_text(json.dumps(costs))


if __name__ == "__main__":
    guarded(main)()
