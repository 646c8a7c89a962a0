"""Base class of runtimes, the plugins of the group ``fl_labelskew.runtimes``."""

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
    """One way to run a recipe; by default, in this process."""

    roles: tuple[str, ...] = ()
    """Values of ``--role``, if a run can be started in parts."""

    def __init__(self, recipe: Recipe, options: RunOptions, folder: RunFolder, show: Progress) -> None:
        self.recipe, self.options, self.folder, self.show = recipe, options, folder, show
        for option, value in (("--role", options.role), ("--rank", options.rank), ("--server", options.server)):
            if value is not None and not self.roles:
                what = f"comm_args.backend {recipe.comm.backend} has no roles"
                raise mistake(f"{option} {value}", what, "a recipe with training_type: cross_silo and backend: GRPC")
        if options.survey and not self.roles:
            what = f"comm_args.backend {recipe.comm.backend} has no silos"
            raise mistake("--survey", what, "labelskew survey RECIPE, which surveys the partition")

    def delegated(self) -> bool:
        """Run this process's part; False if it is the server."""
        return False

    def session(self) -> Session:
        """The server's session."""
        return build(self.recipe)

    def host(self, recipe: Recipe, folder: Path, *, rank: int = 0) -> Host:
        """The framework, with its configuration in ``folder``."""
        return self.load_host()(recipe, folder / "fedml.yaml", rank=rank) if recipe.hosted else Host()

    def load_host(self) -> type[FedML]:
        """Import FedML, which takes seconds."""
        if "fedml" not in sys.modules and not self.options.quiet:
            log.word("loading FedML ...")
        from fl_labelskew_plugins.host.framework import FedML

        return FedML

    def preview(self) -> Session:
        """The session of a dry run."""
        return self.session()

    def survey(self) -> Survey:
        """Ask silos for class counts; only for runtimes with ``roles``."""
        raise NotImplementedError

    def run(self, session: Session, record: Record) -> None:
        """Run the remaining rounds. RunError and KeyboardInterrupt end them with a checkpoint."""
        raise NotImplementedError

    def close(self) -> None:
        """Close connections and processes, also after a failure."""
