"""Errors for users."""

from collections.abc import Sequence
from typing import TypeVar


class LabelSkewError(Exception):
    """A user's mistake, see :func:`mistake`. The command line prints it without a traceback and exits with code 2."""

    exit_code = 2
    frames = ""
    """Lines of a traceback, limited to the plugin author's code, if that code raised the error."""
    public = ""
    """Message that other machines may receive, see :func:`shareable`; empty: none."""

    def shown(self) -> str:
        """Text for the command line: a line for each mistake, and the frames."""
        lines = self.mistakes if isinstance(self, MistakesError) else [" ".join(str(self).split())]
        text = "\n".join(f"error: {line}" for line in lines)
        return f"{text}; traceback of its own code:\n{self.frames}" if self.frames else text


class MistakesError(LabelSkewError):
    """Several mistakes found together; ``mistakes`` has a line for each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


class PluginError(LabelSkewError):
    """A plugin that is unknown, ambiguous, or cannot be loaded."""


def mistake(where: object, what: str, use: str) -> LabelSkewError:
    """A user's mistake in one line: its place, the problem, and what to use instead.

    >>> raise mistake("data/train.csv", "has label 12", "labels from 0 to 9")
    Traceback (most recent call last):
    fl_labelskew_registry.errors.LabelSkewError: data/train.csv: has label 12; use labels from 0 to 9
    """
    return LabelSkewError(f"{where}: {what}; use {use}")


class RunError(LabelSkewError):
    """A run that cannot continue, for example because training diverged. Exit code 1."""

    exit_code = 1


Error = TypeVar("Error", bound=LabelSkewError)


def shareable(error: Error, text: str = "") -> Error:
    """Give the error a message for other machines: ``text``, or its own if that contains no value of local data.

    A silo sends its server only this message.

    >>> shareable(RunError("labels.csv: 12 rows are without a label"), "rows are without a label").public
    'rows are without a label'
    """
    error.public = text or str(error)
    return error
