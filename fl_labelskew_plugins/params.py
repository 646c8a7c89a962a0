"""Base class of all plugins' parameters."""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

LARGEST = 1e30  # below float32's limit of 3.4e38, since torch divides a rate by `1 - beta` before it converts it
IS_PATH = "path"  # marks keys with paths relative to the recipe file


def absolute(value: Any, folder: Path) -> Any:
    """A path, or each path of a list, relative to ``folder``."""
    if isinstance(value, list):
        return [absolute(path, folder) for path in value]
    return os.path.abspath(folder / os.path.expanduser(value)) if isinstance(value, str) else value


class Params(BaseModel):
    """Frozen parameters; unknown keys are refused, and types are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _is_a_float32(cls, value: Any) -> Any:
        if isinstance(value, float) and abs(value) > LARGEST:
            raise ValueError(f"{value:g} is out of range; allowed: numbers up to {LARGEST:g}")
        return value
