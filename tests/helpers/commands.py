"""Commands as a person types them, in this process."""

import click
from click.testing import CliRunner

from fl_labelskew_plugins.cli.main import main


def call(*words, code=0, **environment):
    """Output of ``labelskew`` with these arguments; it must end with ``code`` and without a traceback."""
    result = CliRunner().invoke(main, [str(word) for word in words], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def errors(*words, code=2):
    """The error messages; notes of a report begin with ``!``."""
    lines = [line for line in call(*words, code=code).stderr.splitlines() if not line.startswith("! ")]
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


def parsed(words):
    """The result of our command with these arguments."""
    command = main
    # with the context of the program: a command keeps the first names of its help option that it is asked for
    parent = click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    return command.make_context(command.name, list(words), parent=parent).params
