"""The ``labelskew`` command. Heavy imports happen only when a command runs, so that ``--help`` is fast."""

from __future__ import annotations

import inspect

import click

from fl_labelskew_plugins import __version__
from fl_labelskew_plugins.cli.audit import audit_group
from fl_labelskew_plugins.cli.certs import certs_group
from fl_labelskew_plugins.cli.check import check_command
from fl_labelskew_plugins.cli.completion import completion_command
from fl_labelskew_plugins.cli.convert import convert_command
from fl_labelskew_plugins.cli.data import data_group
from fl_labelskew_plugins.cli.evaluate import evaluate_command
from fl_labelskew_plugins.cli.examples import examples_group
from fl_labelskew_plugins.cli.exits import CONTEXT
from fl_labelskew_plugins.cli.export import export_command
from fl_labelskew_plugins.cli.new import new_group
from fl_labelskew_plugins.cli.partition import partition_command
from fl_labelskew_plugins.cli.plugins import PLUGIN_COMMANDS
from fl_labelskew_plugins.cli.predict import predict_command
from fl_labelskew_plugins.cli.privacy import privacy_command
from fl_labelskew_plugins.cli.recipes import recipes_group
from fl_labelskew_plugins.cli.report import report_command
from fl_labelskew_plugins.cli.reproduce import reproduce_command
from fl_labelskew_plugins.cli.run import run_command
from fl_labelskew_plugins.cli.schema import schema_command
from fl_labelskew_plugins.cli.silo import silo_group
from fl_labelskew_plugins.cli.status import status_command
from fl_labelskew_plugins.cli.survey import survey_command
from fl_labelskew_plugins.cli.sweep import sweep_command
from fl_labelskew_plugins.cli.validate import validate_command


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="labelskew")
def main() -> None:
    """Federated learning for clients with different classes: FedRS, MAP, FedLC, FedShift, FedMR and more, in FedML."""


for _command in (
    run_command,
    *PLUGIN_COMMANDS,
    recipes_group,
    examples_group,
    new_group,
    convert_command,
    validate_command,
    check_command,
    partition_command,
    survey_command,
    report_command,
    reproduce_command,
    sweep_command,
    predict_command,
    evaluate_command,
    export_command,
    data_group,
    certs_group,
    audit_group,
    privacy_command,
    silo_group,
    status_command,
    schema_command,
    completion_command,
):
    main.add_command(_command)


def _show_first_sentence(command: click.Command) -> None:
    """Show the whole first sentence of a command in its group's list, where click would cut it."""
    first = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    command.short_help = command.short_help or first.partition(". ")[0].removesuffix(".") + "."
    for part in getattr(command, "commands", {}).values():
        _show_first_sentence(part)


_show_first_sentence(main)

if __name__ == "__main__":  # mpirun's ranks and local silos are started like this
    main(prog_name="labelskew")
