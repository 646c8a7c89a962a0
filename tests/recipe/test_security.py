"""The host's attacks, defences and differential privacy: what they need, and what they would trip over."""

import pytest
from recipe_texts import lines_of, only_line, text_with

from fl_labelskew_plugins.recipe import mistakes, parse
from fl_labelskew_plugins.recipe.security import DEAD, NEEDS, DpArgs, SecurityArgs

ENOUGH = {
    "byzantine_client_num": 1,
    "attack_mode": "flip",
    "original_class_list": [0],
    "target_class_list": [1],
    "ratio_of_poisoned_client": 0.5,
    "norm_bound": 0.1,
    "krum_param_m": 2,
    "trim_param_b": 1,
    "alpha": 0.5,
    "option_type": 2,
    "batch_num": 2,
    "bucket_size": 2,
    "clip_threshold": 1,
    "beta": 0.1,
    "cosine_similarity_bound": 0.1,
    "mechanism_type": "gaussian",
    "epsilon": 0.5,
    "delta": 1e-5,
    "sensitivity": 1,
}


def host_case(name):
    for section, model, switch, chooser in (
        ("security_args", SecurityArgs, "enable_attack", "attack_type"),
        ("security_args", SecurityArgs, "enable_defense", "defense_type"),
        ("dp_args", DpArgs, "enable_dp", "dp_solution_type"),
    ):
        part = mistakes.keys_of(model)[chooser]
        if name in mistakes.names_in(part):
            return section, {switch: True, chooser: name}
    raise AssertionError(name)


@pytest.mark.parametrize("name", NEEDS)
def test_the_keys_that_a_type_needs(name):
    section, keys = host_case(name)
    full = keys | {key: ENOUGH[key] for key in NEEDS[name]}
    loaded = parse.parse(text_with(**{section: full}))
    args = loaded.security if section == "security_args" else loaded.dp
    assert {key: args.model_dump()[key] for key in full} == full
    lines = lines_of(text_with(**{section: keys}))
    assert [line.split(";")[0] for line in lines] == [f"r.yaml: {section}.{key}: missing" for key in NEEDS[name]]
    assert all("; allowed: " in line and "null" not in line for line in lines)


@pytest.mark.parametrize("switch", ["enable_attack", "enable_defense"])
def test_a_switch_without_a_type(switch):
    assert f"missing; {switch}: true needs it; allowed: " in only_line(text_with(security_args={switch: True}))


@pytest.mark.parametrize("name", DEAD)
def test_what_the_host_only_pretends_to_do_is_refused(name):
    section, chooser = (
        ("dp_args", "dp_solution_type") if name in ("nbafl", "dp_clip") else ("security_args", "defense_type")
    )
    assert f"'{name}' does not work in the host: FedML 0.9.6 " in only_line(text_with(**{section: {chooser: name}}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"defense_type": "krum", "byzantine_client_num": 4}, "byzantine_client_num: 4 is out of range"),
        (
            {"defense_type": "slsgd", "trim_param_b": 5, "alpha": 1, "option_type": 2},
            "trim_param_b: 5 is out of range",
        ),
        (
            {"defense_type": "geo_median", "batch_num": 11, "byzantine_client_num": 1},
            "batch_num: 11 is out of range; allowed: at most client_num_per_round, 10",
        ),
        (
            {"attack_type": "label_flipping", "original_class_list": [1], "target_class_list": []}
            | {"ratio_of_poisoned_client": 0.5},
            "target_class_list: 0 classes for 1 in original_class_list",
        ),
        ({"attack_type": "model_replacement", "attack_training_rounds": [1]}, "differs from attack_train"),
        ({"epsilon": 2, "delta": 0.1}, "epsilon: 2.0 is out of range"),
        ({"epsilon": 1, "delta": 0}, "delta: 0 is out of range"),
    ],
)
def test_values_that_the_host_would_trip_over_in_a_run(keys, message):
    section, switch = "security_args", "enable_attack" if "attack_type" in keys else "enable_defense"
    if "epsilon" in keys:
        section, switch = "dp_args", "enable_dp"
        keys = {"dp_solution_type": "cdp", "mechanism_type": "gaussian", "sensitivity": 1} | keys
    assert message in only_line(text_with(**{section: {switch: True} | keys}))
