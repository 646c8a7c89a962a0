"""The host's attacks, defences and differential privacy, and what of them does not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe.mistakes import Conflict, needed

# Names that FedML 0.9.6 knows and yet leaves without effect, or cannot run: silence would be a false promise.
DEAD: dict[str, str] = {
    "dlg": "FedML 0.9.6 attacks only its own LeNet, resnet20 and resnet56",
    "weak_dp": "FedML 0.9.6 never calls it, so nothing would be defended",
    "robust_learning_rate": "FedML 0.9.6 never calls it, so nothing would be defended",
    "diff_clipping": "FedML 0.9.6 has no code for it; norm_diff_clipping is there",
    "dp": "FedML 0.9.6 has no code for it; see dp_args",
    "nbafl": "FedML 0.9.6 never adds its noise, so nothing would be private",
    "dp_clip": "FedML 0.9.6 never adds its noise, so nothing would be private",
}


class HostArgs(Params):
    """A section under the host's own keys; it tests some of them with ``hasattr``, so none may be None."""

    @field_validator("attack_type", "defense_type", "dp_solution_type", mode="before", check_fields=False)
    @classmethod
    def _works_in_the_host(cls, value: object) -> object:
        if isinstance(value, str) and value in DEAD:
            raise ValueError(f"'{value}' does not work in the host: {DEAD[value]}")
        return value

    @model_serializer(mode="wrap")
    def _in_use(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class SecurityArgs(HostArgs):
    """The host's attacks and defences (``fedml/core/security``); all further keys are given to the host as they are."""

    model_config = ConfigDict(extra="allow")

    enable_attack: bool = Field(False, description="simulate an attack")
    attack_type: Literal["byzantine", "label_flipping", "model_replacement"] | None = Field(
        None, description="which attack; its keys are FedML's, such as attack_mode: random"
    )
    enable_defense: bool = Field(False, description="defend the aggregation")
    defense_type: (
        Literal[
            "norm_diff_clipping",
            "krum",
            "multikrum",
            "slsgd",
            "geo_median",
            "cclip",
            "wise_median",
            "rfa",
            "foolsgold",
            "3sigma",
            "3sigma_foolsgold",
            "3sigma_geo",
            "crfl",
            "trimmed_mean",
            "anomaly_detection",
        ]
        | None
    ) = Field(None, description="which defence; its keys are FedML's, such as norm_bound: 0.1")


class DpArgs(HostArgs):
    """The host's differential privacy, under the host's own keys (``fedml/core/dp``)."""

    enable_dp: bool = Field(False, description="add the host's noise")
    dp_solution_type: Literal["ldp", "cdp"] | None = Field(
        None, description="ldp: every client adds noise to its upload; cdp: the server adds noise to the aggregate"
    )
    mechanism_type: Literal["gaussian", "laplace"] | None = Field(None, description="distribution of the noise")
    epsilon: float | None = Field(None, gt=0, description="privacy budget of a round; gaussian: at most 1")
    delta: float | None = Field(None, ge=0, lt=1, description="failure probability; gaussian: above 0")
    sensitivity: float | None = Field(None, gt=0, description="L2 (gaussian) or L1 (laplace) sensitivity")
    max_grad_norm: float | None = Field(None, gt=0, description="cdp: uploads are scaled to this norm; default: never")


NEEDS: dict[str, tuple[str, ...]] = {
    "byzantine": ("byzantine_client_num", "attack_mode"),
    "label_flipping": ("original_class_list", "target_class_list", "ratio_of_poisoned_client"),
    "norm_diff_clipping": ("norm_bound",),
    "krum": ("byzantine_client_num",),
    "multikrum": ("byzantine_client_num", "krum_param_m"),
    "slsgd": ("trim_param_b", "alpha", "option_type"),
    "geo_median": ("byzantine_client_num", "batch_num"),
    "cclip": ("bucket_size",),
    "crfl": ("clip_threshold",),
    "trimmed_mean": ("beta",),
    "anomaly_detection": ("cosine_similarity_bound",),
    "ldp": ("mechanism_type", "epsilon", "delta", "sensitivity"),
    "cdp": ("mechanism_type", "epsilon", "delta", "sensitivity"),
}
"""Keys that the host reads without a default, by the type of attack, defence or differential privacy."""


def conflicts(security: SecurityArgs, dp: DpArgs) -> Iterator[Conflict]:
    """What the host needs for the switches that are on, and noise that it cannot compute."""
    yield from _needed("security_args", security, "enable_attack", "attack_type")
    yield from _needed("security_args", security, "enable_defense", "defense_type")
    yield from _needed("dp_args", dp, "enable_dp", "dp_solution_type")
    if dp.enable_dp and dp.mechanism_type == "gaussian":
        out, kind = "is out of range; allowed: a number above 0 and", "with mechanism_type gaussian"
        if dp.epsilon is not None and dp.epsilon > 1:
            yield Conflict("dp_args.epsilon", f"{dp.epsilon} {out} at most 1 {kind}", ("dp_args.mechanism_type",))
        if dp.delta == 0:
            yield Conflict("dp_args.delta", f"0 {out} below 1 {kind}", ("dp_args.mechanism_type",))


def _needed(section: str, args: HostArgs, switch: str, chooser: str) -> Iterator[Conflict]:
    if not getattr(args, switch):
        return
    chosen = getattr(args, chooser)
    wanted = (chooser,) if chosen is None else NEEDS.get(chosen, ())
    reason = f"{switch}: true" if chosen is None else f"{chooser}: {chosen}"
    for key in wanted:
        if getattr(args, key, None) is None:
            known = key in type(args).model_fields
            allowed = needed(type(args), key) if known else f"a value that FedML 0.9.6 takes as args.{key}"
            message = f"missing; {reason} needs it; allowed: {allowed}"
            yield Conflict(f"{section}.{key}", message, (f"{section}.{chooser}", f"{section}.{switch}"))
