"""A search for the best settings with Optuna: what falls behind is cut off at a round, and machines share a study.

    pip install "optuna>=4"
    python search_optuna.py          # on every machine that sees this folder, at once or later: 20 trials in all
    labelskew report search          # a row for each trial

A trial whose process is killed stays unfinished in the study, which goes on without it.
"""

from pathlib import Path

import optuna
from fl_labelskew_registry import RunError

import fl_labelskew_plugins as fl

FOLDER = Path("search")
STATES = optuna.trial.TrialState
OVER = (STATES.COMPLETE, STATES.PRUNED, STATES.FAIL)


class Pruning:
    """Tells a trial how each tested round went, and ends its run where that is hopeless."""

    def __init__(self, trial):
        self.trial = trial

    def on_round(self, run, line):
        """A round is complete."""
        if "accuracy" in line:
            self.trial.report(line["accuracy"], line["round"])
            if self.trial.should_prune():
                raise optuna.TrialPruned(f"pruned after round {line['round'] + 1}")


def objective(trial):
    """The last round's accuracy, with settings that Optuna suggests."""
    changes = {
        "train_args.learning_rate": trial.suggest_float("learning_rate", 0.003, 1, log=True),
        "method_args.alpha": trial.suggest_float("alpha", 0, 1),
    }
    recipe, folder = fl.load("quickstart", changes), FOLDER / f"trial{trial.number}"
    return fl.run(recipe, folder, callbacks=[Pruning(trial)], quiet=True, host="none").accuracy


def study(pruner=None):
    """The study of all machines, begun by the first one."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER.resolve() / "journal.log"  # absolute: else a killed process blocks the others for good
    journal = optuna.storages.journal.JournalFileBackend(str(file))
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(journal),
        study_name="quickstart",
        direction="maximize",
        pruner=pruner or optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
        load_if_exists=True,
    )


if __name__ == "__main__":
    search = study()
    # a run that diverges is a trial that failed
    search.optimize(objective, catch=RunError, callbacks=[optuna.study.MaxTrialsCallback(20, states=OVER)])
    print(search.best_value, search.best_params)
