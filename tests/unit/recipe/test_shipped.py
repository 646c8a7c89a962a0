from pathlib import Path

import pytest
from error_messages import message
from recipe_texts import TABLE

from fl_labelskew_plugins.recipe import parse, shipped

pytestmark = pytest.mark.usefixtures("here")


def test_files_and_rows_have_names():
    names = shipped.names()
    assert len(set(names)) == len(names) > 500
    assert {"quickstart", "small/fedmr_fmnist", "fedmr/simulation", "map/femnist"} <= {*names}
    assert shipped.papers().keys() == {"fedlc", "fedmr", "fedrs", "fedshift", "map"}
    assert not any(name.startswith("papers/") for name in names)


def test_a_name_equals_a_path():
    assert parse.load("quickstart").resolved() == parse.load(shipped.folder() / "quickstart.yaml").resolved()
    recipe = parse.load("fedmr/table1_fmnist_p10c2", ["train_args.epochs=3"])
    assert (recipe.name, recipe.train.epochs, recipe.method_name) == ("table1_fmnist_p10c2", 3, "fedmr")
    assert parse.load("recipes/fedmr/table1_fmnist_p10c2.yaml").dump() == parse.load("fedmr/table1_fmnist_p10c2").dump()


def test_a_file_takes_precedence_over_a_name_and_a_folder_does_not(here):
    text = Path(shipped.files()["quickstart"]).read_text("utf-8")
    (here / "small").mkdir()
    (here / "small" / "fedmr_fmnist").write_text(text.replace("comm_round: 10", "comm_round: 3"))
    assert parse.load("small/fedmr_fmnist").train.comm_round == 3
    (here / "quickstart").mkdir()
    assert parse.load("quickstart").train.comm_round == 10


def test_a_row_of_a_users_table(here):
    (here / "deep").mkdir()
    (here / "deep" / "mine.yaml").write_text(TABLE)
    assert parse.load("deep/mine/wide").network.params.hidden == [256]
    assert parse.load(here / "deep" / "mine" / "wide").name == "wide"
    line = "recipe 'deep/mine/wid' is unknown; use one of labelskew recipes ls; did you mean deep/mine/wide"
    assert message(lambda: parse.load("deep/mine/wid")).startswith(line)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("fedmr/table1_fmnits_p10c2", "; did you mean fedmr/table1_fmnist_p10c2 or "),
        ("fedmmr/table1_fmnist_p10c2", "; did you mean fedmr/table1_fmnist_p10c2"),
        ("quickstrat", "recipe 'quickstrat' is unknown; use one of labelskew recipes ls; did you mean qu"),
        ("quickstart.yaml", "quickstart.yaml: cannot be read: No such file or directory"),
        ("fedmr/none.yaml", "recipe 'fedmr/none.yaml' is unknown"),
        ("/quickstart", "/quickstart: cannot be read: No such file or directory"),
        ("..", "..: cannot be read: Is a directory"),
        ("x" * 5000, "unknown"),
        ("a\0b", "unknown"),
    ],
)
def test_an_unknown_recipe_is_a_one_line_error(path, words):
    assert words in message(lambda: parse.load(path))


def test_one_row_is_read_without_other_tables(monkeypatch):
    shipped.table.cache_clear()
    parse.load("map/femnist")
    assert shipped.table.cache_info().currsize == 1
