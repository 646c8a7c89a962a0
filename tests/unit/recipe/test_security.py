import pytest
from error_messages import message
from recipe_texts import DIGITS, FEDAVG, only_line, text_with

import fl_labelskew_plugins as fl

BYZANTINE = {"byzantine_client_num": 1, "attack_mode": "zerro"}
DP = {"enable_dp": True, "dp_solution_type": "ldp", "mechanism_type": "gaussian"}
DP |= {"epsilon": 0.5, "delta": 1e-5, "sensitivity": 1}


@pytest.mark.parametrize(
    ("section", "chooser", "name"),
    [("security_args", "defense_type", "weak_dp"), ("dp_args", "dp_solution_type", "nbafl")],
)
def test_types_without_effect_in_fedml_are_refused(section, chooser, name):
    assert f"{section}.{chooser}: '{name}' is unknown; allowed: " in only_line(text_with(**{section: {chooser: name}}))


@pytest.mark.parametrize(
    ("section", "switch", "key"),
    [
        ("security_args", "enable_attack", "attack_type"),
        ("security_args", "enable_defense", "defense_type"),
        *(("dp_args", "enable_dp", key) for key in DP if key != "enable_dp"),
    ],
)
def test_missing_keys_of_a_feature_are_named_when_the_recipe_is_checked(section, switch, key):
    keys = DP | {key: None} if section == "dp_args" else {switch: True}
    line = f"r.yaml: {section}.{key}: missing; {switch}: true needs it; set it, or {switch}: false"
    assert only_line(text_with(FEDAVG, **{section: keys})) == line


@pytest.mark.parametrize(("key", "value"), [("epsilon", 2), ("delta", 0)])
def test_gaussian_noise_that_fedml_cannot_compute(key, value):
    line = only_line(text_with(FEDAVG, dp_args=DP | {key: value}))
    assert line.startswith(f"r.yaml: dp_args.{key}: {value} is out of range; allowed: ")


@pytest.mark.host
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"enable_attack": True, "attack_type": "label_flipping"}, "original_class_list: missing; FedML needs it"),
        (
            {"enable_attack": True, "attack_type": "byzantine", **BYZANTINE},
            "FedML fails with these settings; its ",
        ),
        ({"enable_defense": True, "defense_type": "krum"}, "byzantine_client_num: missing; FedML needs it; set it"),
        (
            {"enable_defense": True, "defense_type": "krum", "byzantine_client_num": 9},
            "FedML fails with these settings; its ",
        ),
    ],
)
def test_values_that_fedml_cannot_use_end_in_one_line(keys, said, tmp_path):
    recipe = fl.load(DIGITS | {"security_args": keys})
    assert said in message(lambda: fl.run(recipe, tmp_path / "run", quiet=True))
