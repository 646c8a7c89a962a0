"""The ``labelskew`` command; heavy imports happen only when a command runs."""

import inspect
import pkgutil
from importlib import import_module

import click

from fl_labelskew_plugins import __version__, cli
from fl_labelskew_plugins.cli.exits import CONTEXT, guarded
from fl_labelskew_plugins.cli.plugins import PLUGIN_COMMANDS


class Guarded(click.Group):
    """A group with the exit codes of :mod:`.exits`."""

    def invoke(self, context: click.Context) -> None:
        """Run the command in ``context``."""
        guarded(super().invoke)(context)


@click.group(cls=Guarded, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="labelskew")
def main() -> None:
    """Federated learning for clients with different classes: FedRS, MAP, FedLC, FedShift, FedMR and more, in FedML."""


for _command in PLUGIN_COMMANDS:
    main.add_command(_command)
for _module in pkgutil.iter_modules(cli.__path__):
    if _module.name != "main":  # a module VERB defines VERB_command or VERB_group
        _names = vars(import_module(f"{cli.__name__}.{_module.name}"))
        for _name in {f"{_module.name}_command", f"{_module.name}_group"} & _names.keys():
            main.add_command(_names[_name])


def _show_first_sentence(command: click.Command) -> None:
    """Show whole sentences in lists of commands, which click would cut."""
    first = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    command.short_help = command.short_help or first.partition(". ")[0].removesuffix(".") + "."
    for part in getattr(command, "commands", {}).values():
        _show_first_sentence(part)


_show_first_sentence(main)

if __name__ == "__main__":  # mpirun's ranks and local silos are started like this
    main(prog_name="labelskew")
