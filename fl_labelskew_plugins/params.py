"""The base of every plugin's parameters."""

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Frozen parameters; unknown keys are refused, and values are not coerced from other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
