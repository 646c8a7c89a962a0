"""Errors for users."""

from collections.abc import Sequence
from typing import TypeVar


class LabelSkewError(Exception):
    """A user's mistake, see :func:`mistake`; the command line prints it without a traceback.

    ``frames``: traceback lines of a plugin author's code; ``public``: the message for other machines, see
    :func:`shareable`.
    """

    exit_code = 2
    frames = ""
    public = ""

    def shown(self) -> str:
        """Text for the command line."""
        lines = self.mistakes if isinstance(self, MistakesError) else [" ".join(str(self).split())]
        text = "\n".join(f"error: {line}" for line in lines)
        return f"{text}; traceback of its own code:\n{self.frames}" if self.frames else text


class MistakesError(LabelSkewError):
    """Several mistakes found together; ``mistakes`` has a line for each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


class PluginError(LabelSkewError):
    """An unknown, ambiguous or broken plugin."""


def mistake(where: object, what: str, use: str) -> LabelSkewError:
    """A mistake in one line: place, problem, and correction.

    >>> raise mistake("data/train.csv", "has label 12", "labels from 0 to 9")
    Traceback (most recent call last):
    fl_labelskew_registry.errors.LabelSkewError: data/train.csv: has label 12; use labels from 0 to 9
    """
    return LabelSkewError(f"{where}: {what}; use {use}")


class RunError(LabelSkewError):
    """A run that cannot continue, for example because training diverged."""

    exit_code = 1


Error = TypeVar("Error", bound=LabelSkewError)


def shareable(error: Error, text: str = "") -> Error:
    """Give the error the message that a silo sends its server: ``text``, or its own if that has no values of data.

    >>> shareable(RunError("labels.csv: 12 rows are without a label"), "rows are without a label").public
    'rows are without a label'
    """
    error.public = text or str(error)
    return error
