"""The options of a run, and the commands that pass them to its other processes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import RESUME, resume_line
from fl_labelskew_plugins.runs.progress import PAUSE, Pause


@dataclass(frozen=True)
class RunOptions:
    """The options of ``labelskew run``, see docs/commands.md; ``pause``: default: that of the parent process."""

    recipe: str | Path | None = None
    overrides: Sequence[str] = ()
    run_dir: Path | None = None
    resume: Path | None = None
    from_round: int | None = None
    dry_run: bool = False
    survey: bool = False
    quiet: bool = False
    role: str | None = None
    rank: int | None = None
    server: str | None = None
    host: str | None = None
    pause: Pause | None = None

    def check(self) -> None:
        """Raise LabelSkewError for contradictory options."""
        back, resume = f"--from-round {self.from_round}", self.resume is not None
        mistakes = {
            "--run-dir is for a new run and --resume for an old one; use one of them": resume and self.run_dir,
            "no recipe given; give a YAML file, or --resume RUN_DIR": not resume and self.recipe is None,
            f"{back}: needs an earlier run; use it with --resume RUN_DIR": self.from_round and not resume,
            f"{back}: changes the run permanently; remove --dry-run": self.from_round and self.dry_run,
            "--survey trains nothing; use it without --resume": self.survey and resume,
            "--survey asks silos, which --dry-run does not; use one of them": self.survey and self.dry_run,
            "--resume is for the server; to resume a silo, start it again as before": self.role == "client" and resume,
            "--role client: --rank is missing; give the silo's number, from 1": self.role == "client" and not self.rank,
            f"--rank {self.rank}: is for a silo; use it with --role client": self.rank and self.role != "client",
        }
        if line := next((line for line, holds in mistakes.items() if holds), None):
            raise LabelSkewError(line)

    def command(self, recipe: Path, folder: Path, *more: str, resume: bool = False) -> list[str]:
        """The command that runs the recipe in ``folder`` in another process."""
        return [sys.executable, "-m", "fl_labelskew_plugins.cli.main", *self._words(recipe, folder, resume), *more]

    def resume_command(self, folder: Path) -> str:
        """The typed command, with ``--resume`` instead of ``--run-dir``, except for silos."""
        if self.survey:
            return "start the survey again"
        options = (("--role", self.role), ("--rank", self.rank), ("--server", self.server))
        more = [word for option, value in options if value is not None for word in (option, str(value))]
        return resume_line([*self._words(self.recipe, folder, self.role != "client"), *more])

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment variables for the other processes of a run."""
        variables = {RESUME: self.resume_command(folder), log.FORM: log.form}
        return variables if self.pause is None else variables | {PAUSE: str(self.pause)}

    def _words(self, recipe: str | Path | None, folder: Path, resume: bool) -> list[str]:
        words = ["run"] if recipe is None else ["run", str(recipe)]
        for override in self.overrides:
            words += ["--set", override]
        words += ["--resume" if resume else "--run-dir", str(folder)]
        words += ["--survey"] if self.survey else []
        words += [] if self.host is None else ["--host", self.host]
        return [*words, "--quiet"] if self.quiet else words
