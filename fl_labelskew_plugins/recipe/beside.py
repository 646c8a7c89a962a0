"""What may stand beside the sections of a run: a paper's number in its recipe, a silo's policy in the silo's file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fl_labelskew_plugins.params import IS_PATH, Params
from fl_labelskew_plugins.recipe.mistakes import show
from fl_labelskew_plugins.recipe.sections import Positive

Measure = Literal["accuracy", "best_accuracy", "personalised_accuracy", "balanced_accuracy", "rounds_to"]


class Expected(Params):
    """A paper's number, which a recipe's runs can be compared with; it has no part in a run.

    Accuracies are in per cent, as papers print them: means over the last ``validation_args.last_rounds`` tests, but
    ``best_accuracy``, the highest of any test. ``rounds_to`` is the first round, from 1, whose accuracy is ``target``.
    """

    value: float = Field(ge=0, description="the number: per cent, or rounds with rounds_to")
    measure: Measure = Field("accuracy", description="what it measures")
    target: float | None = Field(None, ge=0, le=100, description="rounds_to: the accuracy to be reached, in per cent")
    tolerance: float = Field(2.0, ge=0, description="how far from it still counts as reached, in its unit")
    paper: str = Field(description="whose number it is")
    table: str = Field(description="where it is printed, such as Table 1")

    @model_validator(mode="after")
    def _target_goes_with_rounds(self) -> Expected:
        if (self.measure == "rounds_to") != (self.target is not None):
            raise ValueError("target and measure rounds_to go together; give both or neither")
        return self


ACCOUNT = "account.json"
NOISES = ("count_noise", "upload_sigma", "dp", "noise_multiplier")
Sent = Literal["weights", "prototypes", "counts", "moments", "measures", "optimizer", "other"]


class LeastNoise(Params):
    """Noise of one kind: Laplace and Gaussian noise of one scale do not protect alike."""

    kind: Literal["laplace", "gaussian"] = Field(description="distribution of the noise")
    scale: float = Field(gt=0, description="least scale (laplace), or standard deviation (gaussian)")


class Policy(Params):
    """What a silo takes part in; what is not given is not limited."""

    methods: list[str] | None = Field(None, description="methods that may run, of a combination each of them")
    max_rounds: Positive | None = Field(None, description="rounds that this silo answers, all runs together")
    max_answers_per_round: Positive | None = Field(
        None,
        description="different answers to one round of a run; the same question gets the same answer, which is one",
    )
    min_clients: Positive | None = Field(
        None, description="uploads that a round needs, by the recipe's comm_args.min_clients and the server's word"
    )
    require_secure_aggregation: bool = Field(
        False, description="only recipes with comm_args.secure_aggregation: true, and no surveys"
    )
    several_runs: bool = Field(
        False,
        description="with comm_args.secure_aggregation: one process of this silo may answer several runs, whose sums"
        " the server can compare",
    )
    send: list[Sent] | None = Field(
        None,
        description="what may leave: weights; prototypes (features or outputs of a class); counts (of each class);"
        " moments (sums of samples and of their squares, by channel); measures; optimizer (what an optimiser sends"
        " beside weights); other (of methods that do not say what it is)",
    )
    server_fingerprint: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the server's certificate, as labelskew certs show has it",
    )
    noise_at_least: dict[str, float | LeastNoise] = Field(
        {},
        description="least noise: count_noise (scale, on class counts), upload_sigma (std, on weights), dp (scale of"
        " the host's noise on weights, dp_args), noise_multiplier (of sums, privacy_args); a number, or {kind: laplace"
        " or gaussian, scale: number}",
        json_schema_extra={
            "properties": {
                name: {
                    "anyOf": [
                        {"type": "number", "exclusiveMinimum": 0},
                        {
                            "type": "object",
                            "properties": {
                                "kind": {"enum": ["laplace", "gaussian"]},
                                "scale": {"type": "number", "exclusiveMinimum": 0},
                            },
                            "required": ["kind", "scale"],
                            "additionalProperties": False,
                        },
                    ]
                }
                for name in NOISES
            },
            "additionalProperties": False,
        },
    )
    account: Annotated[str | None, IS_PATH] = Field(
        None, description=f"file of the account of answers; default: {ACCOUNT} in the silo's folder"
    )

    @field_validator("noise_at_least", mode="before")
    @classmethod
    def _known_noise(cls, value: Any) -> Any:
        def right(least: Any) -> bool:
            if (
                isinstance(least, dict)
                and least.keys() == {"kind", "scale"}
                and least["kind"] in ("laplace", "gaussian")
            ):
                least = least["scale"]
            return type(least) in (int, float) and least > 0

        if not isinstance(value, dict) or not value.keys() <= {*NOISES} or not all(map(right, value.values())):
            raise ValueError(
                f"{show(value)} is no mapping of noise; allowed: {', '.join(NOISES)}, each a number above 0 or "
                "{kind: laplace or gaussian, scale: number above 0}"
            )
        return value

    def least_noise(self, name: str) -> tuple[float, str]:
        """Scale and kind of ``noise_at_least``; 0 without, and no kind if any will do."""
        least = self.noise_at_least.get(name, 0.0)
        return (least.scale, least.kind) if isinstance(least, LeastNoise) else (least, "")
