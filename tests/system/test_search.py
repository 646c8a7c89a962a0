"""The example with Optuna: trials end at a round, and a killed process harms no study."""

import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
from commands import call

from fl_labelskew_plugins.machine.files import read_lines

FILE = Path(__file__).parents[2] / "examples" / "search_optuna.py"


def test_the_docs_show_the_example():
    (shown,) = re.findall(r"```python\n(class Pruning.*?)```", (FILE.parents[1] / "docs/python.md").read_text(), re.S)
    assert shown in FILE.read_text()


def test_a_study_prunes_at_rounds_and_survives_a_killed_process(here, capfd):
    search = SimpleNamespace(**runpy.run_path(str(FILE)))
    first = Path("search/trial0/metrics.jsonl")
    process = subprocess.Popen([sys.executable, FILE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not read_lines(first):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    begun = len(search.study().trials)  # one, or more where this process was slow to kill it
    # whoever is below 99 % in the third round is cut off, which everyone is
    study = search.study(optuna.pruners.ThresholdPruner(lower=0.99, n_warmup_steps=2))
    study.optimize(search.objective, n_trials=2)
    study.pruner = optuna.pruners.NopPruner()
    study.optimize(search.objective, n_trials=1)
    pruned, finished = study.trials[begun : begun + 2], study.trials[begun + 2]
    for trial in pruned:
        assert trial.state is optuna.trial.TrialState.PRUNED
        folder = Path("search", f"trial{trial.number}")
        lines = read_lines(folder / "metrics.jsonl")
        assert trial.intermediate_values == {line["round"]: line["accuracy"] for line in lines}
        assert len(lines) == 3
        assert "reason: pruned after round 3" in call("status", folder).output
    assert len(finished.intermediate_values) == 10
    assert finished.value == finished.intermediate_values[9]
    assert study.trials[begun - 1].state is optuna.trial.TrialState.RUNNING  # for good: nobody waits for it
    assert "Traceback" not in "".join(capfd.readouterr())
    table = call("report", "search", "--format", "markdown")
    unranked = [line for line in table.stderr.splitlines() if "shown without a rank" in line]
    assert not any(f"trial{finished.number}:" in line for line in unranked)  # which is whole
    assert f"trial{pruned[0].number}: 3 of 10 rounds: shown without a rank" in table.stderr
