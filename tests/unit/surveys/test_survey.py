import csv
import json

import numpy as np
from error_messages import message
from recipe_texts import cross_silo, text_with

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs.session import divided
from fl_labelskew_plugins.surveys import survey as surveys
from fl_labelskew_plugins.surveys.survey import Survey

COUNTS = np.array([[30, 10, 0, 0], [0, 40, 5, 0]])


def made(**more):
    return Survey("two clients", ["north", "south"], ["a", "b", "c", "d"], COUNTS, **more)


def test_survey_of_a_partition_has_the_counts_of_a_run_and_needs_its_data():
    recipe = parse.parse(text_with())
    survey = surveys.of_partition(recipe)
    data, clients = divided(recipe)
    assert np.array_equal(survey.counts, clients.counts)
    assert (survey.clients, survey.class_names) == (clients.names, data.class_names)
    assert survey.title == "digits, pcdd"
    line = message(lambda: surveys.of_partition(parse.parse(cross_silo())))
    assert "data_silo_config: each silo has its own data" in line
    assert "use labelskew run RECIPE" in line


def test_notes_name_classes_without_clients_and_with_one_client():
    assert made().notes == ["classes that no client holds (1): d", "classes that only one client holds (2): a, c"]
    first, _, noise, silent = made(noise=[0.0, 4.0], silent={"silo 3": "it has not come"}).notes
    assert first.endswith("no client holds (1): d")
    assert noise.startswith("class counts of 1 client have noise (count_noise 4); negative counts were set to 0, so")
    assert silent == "silo 3 is not included: it has not come"


def test_the_result_is_json_even_with_empty_clients():
    empty = Survey("x", ["a", "b"], ["c", "d"], np.array([[3, 1], [0, 0]]))
    content = json.loads(json.dumps(empty.content(), allow_nan=False))
    first, second = content["clients"]
    assert (first["counts"], first["samples"], first["missing"], first["held"]) == ([3, 1], 4, [], 2)
    assert (second["missing"], second["hellinger"], second["effective"]) == ([0, 1], None, None)
    assert content["federation"]["prior"] == [0.75, 0.25]
    assert content["federation"]["missing_pairs"] == 0.5
    assert content["evidence"] is None
    assert content["suggestions"][0].keys() == {"name", "settings", "accuracy", "difference", "reason"}


def test_files_have_all_clients_and_a_picture(tmp_path):
    survey = made(noise=[0.0, 4.0])
    survey.write(tmp_path / "new", "x")
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["x.csv", "x.json", "x.png"]
    head, *rows = csv.reader((tmp_path / "new" / "x.csv").open())
    assert head[:6] == ["client", "a", "b", "c", "d", "samples"]
    assert [row[:6] for row in rows] == [["north", "30", "10", "0", "0", "40"], ["south", "0", "40", "5", "0", "45"]]
    assert float(dict(zip(head, rows[1], strict=True))["hellinger"]) == survey.skew.measures["hellinger"][1]
    assert [row[-1] for row in rows] == ["0.0", "4.0"]
    assert json.loads((tmp_path / "new" / "x.json").read_text())["clients"][1]["name"] == "south"
