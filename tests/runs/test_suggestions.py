"""What follows from a survey: when, with lines that a recipe takes, and with no number that is not published."""

import re
from pathlib import Path

import pytest
from recipe_texts import GOOD, text_with

from fl_labelskew_plugins.recipe import parse, yaml
from fl_labelskew_plugins.runs.suggestions import RULES, Facts, suggestions

RESULTS = " ".join((Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8").split())
P10C2 = {"missing": 0.8, "beyond": 58.0, "sizes": 2.2, "rare": 0, "pairs": 20}
DIRICHLET = {"missing": 0.35, "beyond": 50.0, "sizes": 17.0, "rare": 8, "pairs": 65}
IID = {"missing": 0.0, "beyond": 1.0, "sizes": 1.0, "rare": 0, "pairs": 100}


def names(**facts):
    return [suggestion.name for suggestion in suggestions(Facts(**facts))]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.line], ids=lambda rule: rule.name)
def test_a_line_is_one_that_a_recipe_takes(rule):
    content, twice = yaml.read(rule.line)
    assert not twice
    ((section, keys),) = content.items()
    base = {} if section == "method_args" else GOOD.get(section, {})  # a method's line takes the section's place
    text = yaml.write({**yaml.read(text_with())[0], section: {**base, **keys}})
    recipe = parse.parse(text)
    assert {key: recipe.resolved()[section][key] for key in keys} == keys


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_what_is_said_to_be_measured_stands_in_the_results(rule):
    numbers = re.findall(r"\d+\.\d\d(?: ± \d+\.\d\d)?", rule.measured)
    assert all(number in RESULTS for number in numbers), numbers
    assert numbers or "nothing" in rule.measured
    assert "FedAvg" in rule.paper + rule.measured or "nothing" in rule.measured


def test_what_follows_depends_on_the_data():
    assert names(**IID) == names(**IID | {"missing": 0.1, "rare": 2, "sizes": 20.0}) == ["fedavg"]
    few_classes, dirichlet = names(**P10C2), names(**DIRICHLET)
    assert "fedavg" not in few_classes + dirichlet
    assert {"fedlc", "momentum on the server", "map"} <= {*few_classes} & {*dirichlet}
    assert {"fedmr", "fedrs"} <= {*few_classes} - {*dirichlet}
    assert "fedrs, map, fedphp: equal weights" in {*dirichlet} - {*few_classes}
    assert "fedrs, min_count" in names(**P10C2 | {"rare": 3})


def test_skew_without_missing_classes_asks_for_nothing_against_missing_ones():
    weak = names(**IID | {"beyond": 30.0})
    assert "fedlc" in weak
    assert not any("missing" in name or name.startswith(("fedrs", "fedmr", "map", "proxy")) for name in weak)


def test_a_suggestion_says_what_it_rests_on():
    by_name = {suggestion.name: suggestion for suggestion in suggestions(Facts(**DIRICHLET))}
    assert by_name["map"].finding == "35 % of the (client, class) pairs have no sample"
    assert "17 times the samples" in by_name["fedrs, map, fedphp: equal weights"].finding
    assert by_name["fedlc"].finding == "clients are 50 times as far from the prior as by chance"
