from pathlib import Path

import pytest
from error_messages import mistakes
from recipe_texts import TABLE

from fl_labelskew_plugins.recipe import parse, tables, yaml

pytestmark = pytest.mark.usefixtures("here")


def read(text=TABLE):
    Path("mine.yaml").write_text(text)
    return tables.read(Path("mine.yaml"))


def edited(change):
    content, _ = yaml.read(TABLE)
    change(content)
    return yaml.write(content)


def first_row(**keys):
    return edited(lambda content: content["tables"][0]["rows"][0].update(keys))


def test_the_last_part_that_has_a_key_wins():
    table = read()
    wide, wide_fedavg, row = (parse.parse(table.text(name, name)) for name in ("wide", "wide_fedavg", "exp1_mlp_pcdd"))
    assert (wide.network.params.hidden, row.network.params.hidden) == ([256], [64])
    assert [recipe.train.epochs for recipe in (wide, wide_fedavg, row)] == [2, 1, 1]
    assert [recipe.method.params.mu1 for recipe in (wide, row)] == [0.1, 0.01]
    assert wide_fedavg.method_name == "fedavg"


def test_numbers_come_with_their_tolerance():
    table = read(first_row(rounds_to={"target": 80, "table": "Exp 2", "values": [None, 14]}))
    mean = {"value": 83.2, "measure": "accuracy", "tolerance": 1.0, "paper": "Mine", "table": "Exp 1"}
    rounds = {"value": 14, "measure": "rounds_to", "target": 80.0, "tolerance": 1, "paper": "Mine", "table": "Exp 2"}
    assert table.content("exp1_mlp_pcdd")["expected"] == [mean, rounds]
    assert table.content("exp1_mlp_pcdd_fedavg")["expected"] == [mean | {"value": 81.5, "tolerance": 2.0}]
    assert "expected" not in table.content("wide")
    assert "# Mine, Exp 1: mlp, pcdd, fedmr; no number is printed.\n" in table.text("wide", "mine/wide")


def test_a_path_is_relative_to_the_table(tmp_path):
    text = first_row(set={"comm_args.certs": "certs", "client_specific_args.data_silo_config": ["a.yaml", "/b.yaml"]})
    content = read(text).content("exp1_mlp_pcdd")
    assert content["comm_args"]["certs"] == str(tmp_path / "certs")
    assert content["client_specific_args"]["data_silo_config"] == [str(tmp_path / "a.yaml"), "/b.yaml"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tables: [", "line 1, column 10: expected the node content, but found '<stream end>'"),
        ("- tables:", '[{"tables": null}] is not a mapping; allowed keys: paper, source, comment, base, data,'),
        (edited(lambda content: content.pop("paper")), "paper: missing; allowed: text"),
        (edited(lambda content: content.update(bse={})), "bse: unknown key; allowed: paper,"),
        (edited(lambda content: content.update(default="fedmmr")), "default: 'fedmmr' is unknown; allowed: fedavg"),
        (edited(lambda content: content["base"].update(trian_args={})), "base.trian_args: unknown section; did you"),
        (edited(lambda content: content["tables"].append(3)), "tables, item 2: 3 is not a mapping; allowed keys: "),
        (edited(lambda content: content["tables"][0].pop("rows")), "tables, item 1: rows: missing; allowed: a list"),
        (edited(lambda content: content["tables"][0].update(columns=["fedrm"])), "Exp 1: columns: 'fedrm' is unknown;"),
        (edited(lambda content: content["tables"][0]["rows"].append("x")), "Exp 1, row 3: 'x' is not a mapping; all"),
        (first_row(name="a/b"), "a/b_fedavg: a recipe cannot be called 'a/b_fedavg'; use a name of"),
        (first_row(value=[1.0]), "Exp 1, row 1: value: unknown key; allowed: data, split, name, values"),
        (first_row(data="mpl"), "Exp 1, row 1, exp1_mpl_pcdd_fedavg: data: 'mpl' is unknown; allowed: mlp; did you"),
        (first_row(split="x"), "Exp 1, row 1, exp1_mlp_x_fedavg: split: 'x' is unknown; allowed: pcdd"),
        (first_row(values=[1.0]), "Exp 1, row 1, exp1_mlp_pcdd_fedavg: values: 1 for 2 columns; use null where"),
        (first_row(args={}), "Exp 1, row 1, exp1_mlp_pcdd_fedavg: args.mu1: missing; a method contains $mu1"),
        (first_row(args={"mu1": 1, "m": 2}), "Exp 1, row 1, exp1_mlp_pcdd_fedavg: args.m: unknown key; allowed: mu1"),
        (first_row(set={"trian_args.x": 1}), "exp1_mlp_pcdd_fedavg: 'trian_args.x' is not a section.key, such as"),
        (first_row(each={"fedrs": {}}), "each: 'fedrs' is unknown; allowed: fedavg, fedmr"),
        (first_row(name="wide"), "Exp 1, row 2, wide_fedavg: a second recipe of the name wide; use another name"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(text, line):
    found = mistakes(lambda: read(text))
    assert any(one.startswith("mine.yaml: ") and line in one for one in found), found


def test_values_stay_in_the_comment():
    text = edited(lambda content: content.update(paper="A\nb: 1", source="C\nd: 2", comment="E\nf: 3"))
    assert yaml.read(read(text).text("wide", "a\nb"))[0].keys() == yaml.read(read().text("wide", "a"))[0].keys()


def test_a_repeated_key_is_an_error():
    line = f"mine.yaml: line {len(TABLE.splitlines()) + 1}: key 'paper' occurs twice; first on line 1"
    assert mistakes(lambda: read(f"{TABLE}paper: again\n")) == [line]
