"""Errors that a person reads; each message is one line that says where, what, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence


class LabelSkewError(Exception):
    """A user's mistake, see :func:`mistake`. The command line prints it without a traceback and ends with code 2."""

    exit_code = 2
    frames = ""
    """Lines of a traceback, of a plugin author's own code alone, where that code raised something."""

    def shown(self) -> str:
        """What the command line shows: a line for each mistake, and the frames."""
        lines = self.mistakes if isinstance(self, MistakesError) else [" ".join(str(self).split())]
        text = "\n".join(f"error: {line}" for line in lines)
        return f"{text}; the frames below are of its own code\n{self.frames}" if self.frames else text


class MistakesError(LabelSkewError):
    """Several mistakes found together; ``mistakes`` holds a line for each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


class PluginError(LabelSkewError):
    """A plugin that is unknown, ambiguous, or cannot be loaded; the message names its distribution."""


def mistake(where: object, what: str, use: str) -> LabelSkewError:
    """A user's mistake in one line: where it is, what is there, and what to use instead.

    >>> raise mistake("data/train.csv", "has label 12", "labels from 0 to 9")
    Traceback (most recent call last):
    fl_labelskew_registry.errors.LabelSkewError: data/train.csv: has label 12; use labels from 0 to 9
    """
    return LabelSkewError(f"{where}: {what}; use {use}")


class RunError(LabelSkewError):
    """A run that could not go on, such as one whose training diverged. One line as well, but exit code 1."""

    exit_code = 1
