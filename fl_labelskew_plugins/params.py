"""The base of every plugin's parameters."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

LARGEST = 1e30
"""float32 ends at 3.4e38, and torch divides a rate by ``1 - beta`` before it becomes one: some room is left."""


class Params(BaseModel):
    """Frozen parameters; unknown keys are refused, and values are not coerced from other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _is_a_float32(cls, value: Any) -> Any:
        if isinstance(value, float) and abs(value) > LARGEST:
            raise ValueError(f"{value:g} is out of range; allowed: numbers up to {LARGEST:g}")
        return value
