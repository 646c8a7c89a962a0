import pytest
from error_messages import message
from recipe_texts import DIGITS, lines_of, only_line, text_with

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.recipe import mistakes, parse
from fl_labelskew_plugins.recipe.sections import NEEDS, UNSUPPORTED, DpArgs, SecurityArgs

DP = {"mechanism_type": "gaussian", "epsilon": 0.5, "delta": 1e-5, "sensitivity": 1}


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
def test_missing_keys_of_a_type_are_named(name):
    section, keys = host_case(name)
    full = keys | {key: DP.get(key, [1, {"a": "b"}]) for key in NEEDS[name]}
    loaded = parse.parse(text_with(**{section: full}))
    assert full.items() <= loaded.resolved()[section].items()
    assert parse.parse(loaded.dump()).resolved() == loaded.resolved()
    lines = lines_of(text_with(**{section: keys}))
    assert [line.split(";")[0] for line in lines] == [f"r.yaml: {section}.{key}: missing" for key in NEEDS[name]]
    assert all("; allowed: " in line and "null" not in line for line in lines)


@pytest.mark.parametrize("switch", ["enable_attack", "enable_defense"])
def test_a_switch_without_a_type(switch):
    assert f"missing; {switch}: true needs it; allowed: " in only_line(text_with(security_args={switch: True}))


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_switches_without_effect_in_the_host_are_refused(name):
    section, chooser = (
        ("dp_args", "dp_solution_type") if name in ("nbafl", "dp_clip") else ("security_args", "defense_type")
    )
    assert f"'{name}' does not work in FedML: FedML 0.9.6 " in only_line(text_with(**{section: {chooser: name}}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"epsilon": 2, "delta": 0.1}, "epsilon: 2.0 is out of range"),
        ({"epsilon": 1, "delta": 0}, "delta: 0 is out of range"),
    ],
)
def test_gaussian_noise_that_the_host_cannot_compute(keys, message):
    keys = DP | {"enable_dp": True, "dp_solution_type": "cdp"} | keys
    assert message in only_line(text_with(dp_args=keys))


@pytest.mark.host
@pytest.mark.parametrize(
    "keys",
    [
        {"enable_attack": True, "attack_type": "byzantine", "byzantine_client_num": 1, "attack_mode": "zerro"},
        {"enable_defense": True, "defense_type": "krum", "byzantine_client_num": 9},
        {"enable_defense": True, "defense_type": "norm_diff_clipping", "norm_bound": "much"},
    ],
)
def test_values_that_fedml_cannot_use_end_in_one_line(keys, tmp_path):
    recipe = fl.load(DIGITS | {"security_args": keys})
    line = message(lambda: fl.run(recipe, tmp_path / "run", quiet=True))
    assert "security_args, dp_args: FedML fails with these keys: " in line
