"""Read the files of a run's folder."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, mistake
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from fl_labelskew_plugins.machine.files import read_lines, read_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.recipe.model import EXPECTED
from fl_labelskew_plugins.recipe.sections import Expected


class RunFile(BaseModel):
    """Types of a JSON file's keys, all of them optional."""

    model_config = ConfigDict(strict=True, extra="allow")


class Environment(RunFile):
    """``environment.json``."""

    run: str = ""
    data: str | None = None
    partition: str | None = None
    host: str | None = None
    method: str = ""
    optimizer: dict[str, Any] = {}
    personal_models: bool = False
    class_names: list[str] = []
    normalisation: dict[str, list[float] | None] = {}
    notes: list[str] = []
    objects: dict[str, Any] = {}


class Summary(RunFile):
    """``summary.json``, written after the last round."""

    rounds: int = 0
    seconds: float = 0.0
    data: str | None = None
    stopped: str = ""
    clients: list[dict[str, Any]] = []


class Partition(RunFile):
    """``partition.json``: clients' names, and training samples by class, ``(K, C)``."""

    clients: list[str] = []
    counts: list[list[NonNegativeInt]] = []


class RunReader:
    """The files of a run's folder, read at each access; raises LabelSkewError for damaged files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.metrics = path / "metrics.jsonl"
        self.timings = path / "timings.jsonl"
        self.summary = path / "summary.json"

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The recipe's sections and keys, without its plugins."""
        try:
            content, _ = yaml.read(yaml.text_of(self.recipe))
        except yaml.YamlError as error:
            raise self.damaged(self.recipe, clean(error)) from None
        if isinstance(content, dict):
            content.pop(EXPECTED, None)  # not a section
        if not isinstance(content, dict) or not all(isinstance(keys, dict) for keys in content.values()):
            raise self.damaged(self.recipe, "it contains no recipe")
        return content

    @property
    def expected(self) -> list[Expected]:
        """The papers' numbers in the recipe, without invalid ones."""
        content: Any = None
        with suppress(yaml.YamlError):
            content, _ = yaml.read(yaml.text_of(self.recipe))
        numbers = content.get(EXPECTED, []) if isinstance(content, dict) else []
        found = []
        for number in numbers if isinstance(numbers, list) else [numbers]:
            with suppress(ValidationError):
                found.append(Expected.model_validate(number))
        return found

    @property
    def environment(self) -> dict[str, Any]:
        """The content of ``environment.json``; empty before the run begins."""
        return self._content("environment.json", Environment)

    @property
    def results(self) -> dict[str, Any]:
        """The content of ``summary.json``; empty before the run's end."""
        return self._content("summary.json", Summary)

    @property
    def partition(self) -> dict[str, Any]:
        """The content of ``partition.json``; empty if no single process knows it."""
        return self._content("partition.json", Partition)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Lines of ``metrics.jsonl``, up to the first damaged one."""
        return read_lines(self.metrics)

    @property
    def class_names(self) -> list[str]:
        """The classes' names; empty before the run begins."""
        return [*self.environment.get("class_names", [])]

    def _content(self, name: str, kind: type[RunFile]) -> dict[str, Any]:
        file = self.path / name
        try:
            content: dict[str, Any] = json.loads(read_text(file))
            kind.model_validate(content)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LabelSkewError(f"{clean(file, 4096)}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise self.damaged(file) from None
        return content

    @staticmethod
    def damaged(file: Path, reason: str = "unexpected content") -> LabelSkewError:
        """The error for a damaged file."""
        return mistake(clean(file, 4096), f"is damaged: {reason}", "the folder as the run has written it")
