import pytest
from error_messages import message
from recipe_texts import DIGITS, only_line, text_with

import fl_labelskew_plugins as fl

BYZANTINE = {"byzantine_client_num": 1, "attack_mode": "zerro"}
DP = {
    **{"enable_dp": True, "dp_solution_type": "ldp", "mechanism_type": "gaussian"},
    **{"epsilon": 0.5, "delta": 1e-5, "sensitivity": 1},
}


@pytest.mark.parametrize(
    ("section", "chooser", "name"),
    [("security_args", "defense_type", "weak_dp"), ("dp_args", "dp_solution_type", "nbafl")],
)
def test_types_without_effect_in_fedml_are_refused(section, chooser, name):
    assert f"{section}.{chooser}: '{name}' is unknown; allowed: " in only_line(text_with(**{section: {chooser: name}}))


@pytest.mark.host
@pytest.mark.parametrize(
    "keys",
    [
        {"security_args": {"enable_attack": True}},
        {"security_args": {"enable_attack": True, "attack_type": "label_flipping"}},
        {"security_args": {"enable_attack": True, "attack_type": "byzantine", **BYZANTINE}},
        {"security_args": {"enable_defense": True, "defense_type": "krum", "byzantine_client_num": 9}},
        {"security_args": {"enable_defense": True, "defense_type": "norm_diff_clipping", "norm_bound": "much"}},
        {"dp_args": {"enable_dp": True}},
        {"dp_args": DP | {"sensitivity": None}},
        {"dp_args": DP | {"epsilon": 2}},
        {"dp_args": DP | {"delta": 0}},
    ],
)
def test_values_that_fedml_cannot_use_end_in_one_line(keys, tmp_path):
    recipe = fl.load(DIGITS | keys)
    line = message(lambda: fl.run(recipe, tmp_path / "run", quiet=True))
    assert "security_args, dp_args: FedML fails with these keys: " in line
