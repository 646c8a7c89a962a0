"""The host's attacks, defences and differential privacy, and what of them does not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe.mistakes import Conflict, needed
from fl_labelskew_plugins.recipe.sections import Positive

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
    """The host's attacks and defences, under the host's own keys (``fedml/core/security``)."""

    enable_attack: bool = Field(False, description="simulate an attack")
    attack_type: Literal["byzantine", "label_flipping", "model_replacement"] | None = Field(
        None, description="which attack"
    )
    attack_prob: float | None = Field(None, ge=0, le=1, description="probability of an attack; default: always")
    byzantine_client_num: int | None = Field(None, ge=0, description="malicious clients of a round, known or assumed")
    attack_mode: Literal["zero", "random", "flip"] | None = Field(None, description="byzantine: what they upload")
    original_class_list: list[int] | None = Field(None, description="label_flipping: classes that are relabelled")
    target_class_list: list[int] | None = Field(None, description="label_flipping: their new labels, in order")
    ratio_of_poisoned_client: float | None = Field(None, ge=0, le=1, description="label_flipping: share of clients")
    poison_start_round_id: int | None = Field(None, ge=0, description="label_flipping: first round; default: 0")
    poison_end_round_id: int | None = Field(None, ge=0, description="label_flipping: last round; default: the last")
    malicious_client_id: int | None = Field(
        None, ge=0, description="model_replacement: position in the round; default: drawn every round"
    )
    attack_training_rounds: list[Positive] | None = Field(
        None, description="model_replacement: rounds, from 1; default: every round"
    )
    poisoned_training_round: list[Positive] | None = Field(
        None, description="model_replacement: the same list again; the host looks at both"
    )
    scale_factor_S: float | None = Field(None, gt=0, description="model_replacement: bound on the scale")  # noqa: N815
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
    ) = Field(None, description="which defence")
    norm_bound: float | None = Field(None, gt=0, description="norm_diff_clipping: bound on an update's norm")
    krum_param_m: Positive | None = Field(None, description="multikrum: uploads that are kept; default: 1")
    trim_param_b: int | None = Field(None, ge=0, description="slsgd: uploads trimmed at each end")
    alpha: float | None = Field(None, ge=0, le=1, description="slsgd: weight of the new model")
    option_type: Literal[1, 2] | None = Field(None, description="slsgd: 1 mean, 2 trimmed mean")
    batch_num: Positive | None = Field(None, description="geo_median: buckets of uploads")
    bucket_size: Positive | None = Field(None, description="cclip: uploads in a bucket")
    tau: float | None = Field(None, gt=0, description="cclip: clipping radius; default: 10")
    beta: float | None = Field(None, ge=0, lt=0.5, description="trimmed_mean: share trimmed at each end")
    clip_threshold: float | None = Field(None, gt=0, description="crfl: bound on the model's norm")
    sigma: float | None = Field(None, ge=0, description="crfl: noise on the model; default: 0.01")
    bucketing_batch_size: Positive | None = Field(None, description="3sigma_foolsgold: uploads in a bucket; default: 1")
    pretraining_round_num: int | None = Field(
        None, ge=0, description="3sigma_foolsgold, 3sigma_geo: rounds without defence; default: 2"
    )
    to_keep_higher_scores: bool | None = Field(
        None, description="3sigma_foolsgold (default: true), 3sigma_geo (default: false): which side is kept"
    )
    cosine_similarity_bound: float | None = Field(
        None, ge=-1, le=1, description="anomaly_detection: below it an upload is suspect"
    )


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


ROUND = ("train_args.client_num_per_round", "train_args.client_num_in_total")


def conflicts(security: SecurityArgs, dp: DpArgs, clients: int) -> Iterator[Conflict]:
    """What of the two sections does not go together, or with ``clients`` that join a round."""
    yield from _needed("security_args", security, "enable_attack", "attack_type")
    yield from _needed("security_args", security, "enable_defense", "defense_type")
    yield from _needed("dp_args", dp, "enable_dp", "dp_solution_type")
    if security.enable_attack:
        yield from _attack_conflicts(security)
    if security.enable_defense:
        yield from _defense_conflicts(security, clients)
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
    wanted = (
        {chooser: f"{switch}: true"} if chosen is None else dict.fromkeys(NEEDS.get(chosen, ()), f"{chooser}: {chosen}")
    )
    for key, why in wanted.items():
        if getattr(args, key) is None:
            message = f"missing; {why} needs it; allowed: {needed(type(args), key)}"
            yield Conflict(f"{section}.{key}", message, (f"{section}.{chooser}", f"{section}.{switch}"))


def _attack_conflicts(security: SecurityArgs) -> Iterator[Conflict]:
    old, new = security.original_class_list, security.target_class_list
    if security.attack_type == "label_flipping" and old is not None and new is not None and len(old) != len(new):
        message = f"{len(new)} classes for {len(old)} in original_class_list; allowed: as many"
        yield Conflict("security_args.target_class_list", message, ("security_args.original_class_list",))
    # The host looks for one key and reads the other.
    rounds, again = security.attack_training_rounds, security.poisoned_training_round
    if security.attack_type == "model_replacement" and rounds != again:
        message = "differs from attack_training_rounds; allowed: the same list, or neither (the host reads both)"
        yield Conflict("security_args.poisoned_training_round", message, ("security_args.attack_training_rounds",))


def _defense_conflicts(security: SecurityArgs, clients: int) -> Iterator[Conflict]:
    kind, number = security.defense_type, security.byzantine_client_num
    most = (clients - (security.krum_param_m or 1) - 2) // 2
    if kind in ("krum", "multikrum") and number is not None and number > most:
        right = f"at most (client_num_per_round - krum_param_m - 2) / 2, here {most}"
        message = f"{number} is out of range; allowed: {right}"
        yield Conflict("security_args.byzantine_client_num", message, ("security_args.krum_param_m", *ROUND))
    number, most = security.trim_param_b, (clients + 1) // 2 - 1
    if kind == "slsgd" and number is not None and number > most:
        message = f"{number} is out of range; allowed: less than half of client_num_per_round, here at most {most}"
        yield Conflict("security_args.trim_param_b", message, ROUND)
    number = security.batch_num
    if kind == "geo_median" and number is not None and number > clients:
        message = f"{number} is out of range; allowed: at most client_num_per_round, {clients}"
        yield Conflict("security_args.batch_num", message, ROUND)
