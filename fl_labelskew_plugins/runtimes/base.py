"""What a runtime is: a plugin of the group ``fl_labelskew.runtimes``, named by ``comm_args.backend``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_labelskew_registry import mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.typed import GO_ON, to_go_on
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.progress import PAUSE, Pause
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, build
from fl_labelskew_plugins.surveys.survey import Survey

if TYPE_CHECKING:
    from fl_labelskew_plugins.host.framework import FedML
    from fl_labelskew_plugins.runs.folder import RunFolder
    from fl_labelskew_plugins.runs.progress import Progress


@dataclass(frozen=True)
class Call:
    """What the command line asked for: what a runtime asks of other processes, and says how to go on with.

    Args:
        path: the recipe's file; None where a run is resumed without naming it.
        overrides: ``section.key=value`` each.
        resume: whether the run's folder is one to go on with.
        quiet: print nothing but errors.
        role: ``server`` or ``client`` where each is started on its own machine; None: this machine plays all parts.
        rank: which silo, ``1 .. K``, in the client's role.
        server: address of the server, in place of the recipe's.
        pause: when to stop early.
        passphrase_fd: file descriptor that the passphrase of encrypted keys comes from.
        survey: ask silos for their class counts, and train nothing.
        host: ``fedml`` or ``none``, as asked for; None: FedML where it is installed.
    """

    path: Path | None
    overrides: tuple[str, ...]
    resume: bool
    quiet: bool
    role: str | None = None
    rank: int | None = None
    server: str | None = None
    pause: Pause | None = None
    passphrase_fd: int | None = None
    survey: bool = False
    host: str | None = None

    def command(self, recipe: Path, folder: Path, *more: str, resume: bool = False) -> list[str]:
        """The command that runs the same recipe in another process."""
        return [sys.executable, "-m", "fl_labelskew_plugins.cli.main", *self._words(recipe, folder, resume), *more]

    def go_on(self, folder: Path) -> str:
        """How to go on with the run in ``folder``: the command as it was typed, with ``--resume`` for ``--run-dir``.

        A silo's is the same command again, since its folder is the same whenever it is started; so is a survey's.
        """
        if self.survey:
            return "start the survey again"
        options = (("--role", self.role), ("--rank", self.rank), ("--server", self.server))
        more = [word for option, value in options if value is not None for word in (option, str(value))]
        return to_go_on([*self._words(self.path, folder, self.role != "client"), *more])

    def environment(self, folder: Path) -> dict[str, str]:
        """What the processes have to know that share a run in ``folder``."""
        variables = {GO_ON: self.go_on(folder), log.FORM: log.form}
        return variables if self.pause is None else variables | {PAUSE: str(self.pause)}

    def _words(self, recipe: Path | None, folder: Path, resume: bool) -> list[str]:
        words = ["run"] if recipe is None else ["run", str(recipe)]
        for override in self.overrides:
            words += ["--set", override]
        words += ["--resume" if resume else "--run-dir", str(folder)]
        words += ["--survey"] if self.survey else []
        words += [] if self.host is None else ["--host", self.host]
        return [*words, "--quiet"] if self.quiet else words


class Runtime:
    """One way to run a recipe. As it stands: everything in this process. The run's folder is not made here."""

    roles: tuple[str, ...] = ()
    """Roles that may be asked for by themselves; none where everything runs in one place."""

    def __init__(self, recipe: Recipe, call: Call, folder: RunFolder, show: Progress) -> None:
        self.recipe, self.call, self.folder, self.show = recipe, call, folder, show
        for option, value in (("--role", call.role), ("--rank", call.rank), ("--server", call.server)):
            if value is not None and not self.roles:
                what = f"comm_args.backend {recipe.comm.backend} runs in one place"
                raise mistake(f"{option} {value}", what, "a recipe with training_type: cross_silo and backend: GRPC")
        if call.survey and not self.roles:
            what = f"comm_args.backend {recipe.comm.backend} has no silos to ask"
            raise mistake("--survey", what, "labelskew survey RECIPE, which looks at the partition")
        if call.rank is not None and call.role != "client":
            raise mistake(f"--rank {call.rank}", "is for a silo", "it with --role client")

    def delegated(self) -> bool:
        """Do this process's part where that is not the server's; False: this process is the server."""
        return False

    def session(self) -> Session:
        """The recipe brought to life, as the server needs it."""
        return build(self.recipe)

    def host(self, recipe: Recipe, folder: Path, *, rank: int = 0) -> Host:
        """The framework around this process's part of a run; what it was given is kept in ``folder``."""
        return self.load_host()(recipe, folder / "fedml.yaml", rank=rank) if recipe.hosted else Host()

    def load_host(self) -> type[FedML]:
        """Import FedML, which takes seconds."""
        if "fedml" not in sys.modules and not self.call.quiet:
            log.word("loading FedML ...")
        from fl_labelskew_plugins.host.framework import FedML

        return FedML

    def preview(self) -> Session:
        """What can be built here for a dry run: nobody is started, contacted or waited for."""
        return self.session()

    def survey(self) -> Survey:
        """Ask silos for their class counts, as the server; where there are ``roles`` alone."""
        raise NotImplementedError

    def run(self, session: Session, record: Record) -> None:
        """Run the rounds that are left.

        Raises:
            RunError: the run cannot go on; the record has saved a checkpoint.
            KeyboardInterrupt: likewise.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of connections and processes, after success and after failure; called in any case."""
