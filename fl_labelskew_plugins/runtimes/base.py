"""What a runtime is: a plugin of the group ``fl_labelskew.runtimes``, named by ``comm_args.backend``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fl_labelskew_registry import mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, build
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.surveys.survey import Survey

if TYPE_CHECKING:
    from fl_labelskew_plugins.host.framework import FedML
    from fl_labelskew_plugins.runs.folder import RunFolder
    from fl_labelskew_plugins.runs.progress import Progress


class Runtime:
    """One way to run a recipe. As it stands: everything in this process. The run's folder is not made here."""

    roles: tuple[str, ...] = ()
    """Roles that may be asked for by themselves; none where everything runs in one place."""

    def __init__(self, recipe: Recipe, options: RunOptions, folder: RunFolder, show: Progress) -> None:
        self.recipe, self.options, self.folder, self.show = recipe, options, folder, show
        for option, value in (("--role", options.role), ("--rank", options.rank), ("--server", options.server)):
            if value is not None and not self.roles:
                what = f"comm_args.backend {recipe.comm.backend} runs in one place"
                raise mistake(f"{option} {value}", what, "a recipe with training_type: cross_silo and backend: GRPC")
        if options.survey and not self.roles:
            what = f"comm_args.backend {recipe.comm.backend} has no silos to ask"
            raise mistake("--survey", what, "labelskew survey RECIPE, which looks at the partition")

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
        if "fedml" not in sys.modules and not self.options.quiet:
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
