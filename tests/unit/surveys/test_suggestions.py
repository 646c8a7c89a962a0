from pathlib import Path

import numpy as np
import pytest
from recipe_texts import GOOD, text_with

from fl_labelskew_plugins.recipe import parse, yaml
from fl_labelskew_plugins.surveys.skew import skew
from fl_labelskew_plugins.surveys.suggestions import COMPARED, SITUATIONS, evidence, explained, suggestions

RESULTS = (Path(__file__).parents[3] / "docs" / "results.md").read_text(encoding="utf-8")
P10C2, DIRICHLET = SITUATIONS


def counts(clients, held, sizes=1):
    """Of 10 classes; each client holds some in turn, and the last one has ``sizes`` times the samples."""
    made = np.zeros((clients, 10), np.int64)
    for k in range(clients):
        made[k, (np.arange(held) + k * held) % 10] = 100 * (sizes if k == clients - 1 else 1)
    return made


@pytest.mark.parametrize(
    ("data", "situation"),
    [
        (counts(10, 2), P10C2),
        (counts(20, 3, 6), P10C2),
        (counts(21, 2), None),
        (counts(4, 2), None),
        (counts(10, 4), None),
        (counts(10, 2, 8), None),
        (counts(10, 6, 10), DIRICHLET),
        (counts(3, 8), None),
        (counts(10, 10), None),
    ],
)
def test_evidence_is_of_similar_data(data, situation):
    assert evidence(skew(data)) is situation


@pytest.mark.parametrize("situation", [*SITUATIONS, None], ids=lambda one: one and one.name)
def test_settings_are_those_of_a_recipe(situation):
    for one in suggestions(situation):
        assert {"method_args", "train_args"} == one.settings.keys()  # the recipe may have another optimiser
        content = yaml.read(text_with())[0]
        for section, keys in one.settings.items():  # a method's settings replace the section
            content[section] = keys if section == "method_args" else {**GOOD.get(section, {}), **keys}
        resolved = parse.parse(yaml.write(content)).resolved()
        assert all({key: resolved[name][key] for key in keys} == keys for name, keys in one.settings.items())


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_measured_methods_are_ranked_next_to_fedavg(situation):
    ranked = suggestions(situation)
    differences = [one.difference for one in ranked]
    assert differences == sorted(differences, reverse=True)
    assert ranked[-1].name == "fedavg"
    assert differences[-1] == 0 < differences[-2]
    assert all(f"| {one.accuracy} |" in RESULTS for one in ranked)
    assert len({str(one.settings) for one in ranked}) == len(ranked)


def test_without_evidence_three_methods_are_compared():
    hospitals = skew(np.array([[73, 82, 88, 0, 33, 78], [0, 0, 77, 60, 114, 120], [134, 118, 31, 138, 54, 0]]))
    assert suggestions(evidence(hospitals)) is COMPARED
    assert [one.name for one in COMPARED] == ["fedavg", "fedlc", "fedshift"]
    text = explained(hospitals, None)
    assert text.startswith(
        "No evidence for this situation (3 clients, 22.2 % missing pairs, largest client 1.3 times the smallest)"
    )
    assert explained(skew(counts(10, 10)), None).startswith("There is hardly any label skew (10 clients, 0 % missing")
