"""The folders that are written for somebody's own data: they hold no mistake, and train as they are."""

import itertools
import json
import re
import shlex
import stat

import numpy as np
import pytest
import yaml
from commands import call, errors, parsed
from fl_labelskew_registry import LabelSkewError
from mistakes import message

from fl_labelskew_plugins.front.new import write
from fl_labelskew_plugins.front.new.look import Look, look
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import model_file

HEAD = "# yaml-language-server: $schema=recipe.schema.json\n"
SILOS = {"St.-Mary-s": ["St. Mary's"], "north": ["north"], "south": ["south"]}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipes_of(folder):
    """Each recipe and silo's file in a folder, without a mistake in any."""
    files = sorted(folder.glob("*.yaml"))
    assert all(file.read_text().startswith(HEAD) for file in files)
    call("validate", *files)
    return {file.stem: yaml.safe_load(file.read_text()) for file in files}


def test_pictures_of_classes_are_dealt_out(own, here):
    said = call("new", "simulation", "mine", "--data", own / "flat").output.splitlines()
    assert said == [
        "written to mine: .gitignore, README.md, recipe.schema.json, simulation.yaml",
        "next (README.md has the rest):",
        "  cd mine",
        "  labelskew survey simulation.yaml",
        "  labelskew run simulation.yaml --run-dir runs/first",
    ]
    recipe = recipes_of(here / "mine")["simulation"]
    assert recipe["partition_args"]["partition_method"] == "dirichlet"
    assert recipe["model_args"] == {"model": "tfcnn"}
    assert json.loads((here / "mine" / "recipe.schema.json").read_text())["$schema"]
    assert (here / "mine" / ".gitignore").read_text() == "runs/\n"


def test_hospitals_of_pictures_are_silos_and_the_server_has_no_data(own, here):
    call("new", "federation", "mine", "--data", own / "tree")
    files = recipes_of(here / "mine")
    federation = files.pop("federation")
    assert files.keys() == SILOS.keys()
    assert federation["client_specific_args"]["data_silo_config"] == [f"{stem}.yaml" for stem in SILOS]
    assert federation["validation_args"]["server_test_data"] is False
    assert "data_cache_dir" not in federation["data_args"]
    assert federation["data_args"]["input_shape"] == [3, 64, 64]
    for stem, (group,) in SILOS.items():
        assert files[stem]["data_args"]["data_cache_dir"] == str(own / "tree" / group)
        assert files[stem]["data_args"]["class_names"] == ["benign", "malign", "unclear"]
    assert (here / "mine" / ".gitignore").read_text() == "runs/\ncerts/\ndata/\n"


def test_an_archive_s_groups_become_archives(own, here):
    call("new", "federation", "mine", "--data", own / "grouped.npz")
    files = recipes_of(here / "mine")
    federation, whole = files.pop("federation"), np.load(own / "grouped.npz")
    assert federation["data_args"] == {"dataset": "npz", "classes": 3, "input_shape": [1, 8, 8]}
    for group, silo in zip(("coast", "north", "south"), files.values(), strict=True):
        part = np.load(silo["data_args"]["data_cache_dir"])
        np.testing.assert_array_equal(part["x"], whole["x"][whole["groups"] == group])
        np.testing.assert_array_equal(part["y"], whole["y"][whole["groups"] == group])


def test_an_archive_s_test_part_goes_with_its_groups(here):
    x, y, groups = np.zeros((40, 4), np.float32), np.arange(40) % 2, np.arange(40) // 20
    x[:] = np.arange(40)[:, None]
    test = {"x_test": x, "y_test": y, "groups_test": np.zeros(40, int)}  # group 1 has no test sample
    np.savez("a.npz", x_train=x, y_train=y, groups_train=groups, **test)
    call("new", "federation", "mine", "--data", "a.npz")
    first, second = (np.load(path) for path in sorted((here / "mine" / "data").iterdir()))
    assert {*first.files} == {"x_train", "y_train", "x_test", "y_test", "class_names"}
    assert first["x_test"].shape == (40, 4)
    assert {*second.files} == {"x", "y", "class_names"}
    assert second["x"][0, 0] == 20


def test_a_table_s_groups_become_tables_without_what_is_no_feature(table, here):
    call("new", "federation", "mine", "--data", table)
    files = recipes_of(here / "mine")
    federation = files.pop("federation")
    assert federation["data_args"]["input_shape"] == [4]
    rows = 0
    for group, silo in zip(("coast", "north", "south"), files.values(), strict=True):
        assert silo["data_args"]["data_cache_dir"] == str(here / "mine" / "data" / f"{group}.csv")
        head, *lines = (here / "mine" / "data" / f"{group}.csv").read_text().splitlines()
        assert head == "age,sex,pressure,diagnosis"
        rows += len(lines)
    assert rows == 120


def test_without_groups_the_number_of_silos_is_asked_for(own, here):
    assert errors("new", "federation", "mine", "--data", own / "flat") == [
        f"{own / 'flat'}: has no groups, such as hospitals, to make silos of; use --silos with their number"
    ]
    call("new", "federation", "mine", "--data", own / "flat", "--silos", "2")
    assert recipes_of(here / "mine").keys() == {"federation", "silo-1", "silo-2"}
    assert "All silos' files name the same data" in (here / "mine" / "README.md").read_text()
    assert errors("new", "federation", "other", "--data", own / "tree", "--silos", "2") == [
        f"--silos 2: {own / 'tree'} has 3 groups, a silo each; use no --silos"
    ]


def test_nothing_is_written_over_and_of_what_fails_nothing_is_left(own, here, monkeypatch):
    (here / "mine").mkdir()
    (here / "mine" / "notes").write_text("mine")
    assert errors("new", "simulation", "mine", "--data", own / "flat") == [
        "mine: is not empty; use a new or empty folder"
    ]
    inside = own / "flat" / "mine"
    assert errors("new", "simulation", inside, "--data", own / "flat") == [
        f"{inside}: lies within the data; use a folder outside of them"
    ]

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_finish", full)
    with pytest.raises(LabelSkewError, match=r"other: cannot be written \(No space left on device\)"):
        write.simulation(look(own / "flat"), here / "other")
    assert [path.name for path in here.iterdir()] == ["mine"]


def test_names_of_groups_get_into_no_path_and_no_line(here):
    names = ["../x", "..", "README", "federation", "North", "north", "a\nb", "<b>|`", "ü" * 200]
    stems = write.file_names(names)
    assert len({stem.lower() for stem in stems}) == len(names)
    assert all(re.fullmatch(r"\w[\w.-]{0,62}", stem) for stem in stems)
    seen = Look(
        "image_folder", here / "data", {"data_cache_dir": str(here / "data")}, (3, 8, 8), ["a\x1b", "b"], names, 9
    )
    write.federation(seen, here / "mine", None)
    assert len(recipes_of(here / "mine")) == len(names) + 1
    readme = (here / "mine" / "README.md").read_text()
    assert "<b>" not in readme
    assert "\x1b" not in readme + (here / "mine" / "federation.yaml").read_text()


def test_a_federation_of_very_many_groups_is_refused(here):
    seen = Look("npz", here, {"data_cache_dir": "a.npz"}, (4,), ["0", "1"], [str(g) for g in range(101)], 999)
    assert message(lambda: write.federation(seen, here / "mine", None)).endswith(
        "has 101 groups, a silo each; use 100 at most, or labelskew new simulation"
    )
    write.simulation(seen, here / "mine")
    train = recipes_of(here / "mine")["simulation"]["train_args"]
    assert (train["client_num_in_total"], train["client_num_per_round"]) == (101, 10)


@pytest.mark.parametrize("typed", [("simulation",), ("federation", "--silos", "2")], ids=" ".join)
def test_the_readme_s_commands_are_commands(own, here, typed):
    kind, *more = typed
    call("new", kind, "mine", "--data", own / "flat", *more)
    readme = (here / "mine" / "README.md").read_text()
    blocks = itertools.chain(*(block.splitlines() for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)))
    commands = [words for line in blocks if (words := shlex.split(line, comments=True))]
    assert {words[0] for words in commands} == {"labelskew"}
    verbs = {words[1] for words in commands}
    assert {"validate", "run", "evaluate", "predict", "export"} <= verbs
    for _, *rest in commands:
        parsed(rest)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "tree", "grouped.npz", "table.csv"])
def test_a_simulation_trains_as_it_is(own, here, kind):
    call("new", "simulation", "mine", "--data", own / kind)
    call("run", "mine/simulation.yaml", "--run-dir", "run", "--quiet", "--set", "train_args.comm_round=3")
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["best_accuracy"] > 0.6  # three classes
    if kind != "flat":
        assert json.loads((here / "run" / "metrics.jsonl").read_text().splitlines()[0])["clients"] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["tree", "table.csv"])
def test_a_federation_trains_as_it_is(own, here, kind, forker):
    call("new", "federation", "mine", "--data", own / kind)
    folder = here / "mine"
    readme = (folder / "README.md").read_text()
    assert "\nlabelskew certs new --silos 3 " in readme
    certs = forker.start(["certs", "new", "--silos", "3"], here / "certs.log", cwd=folder)
    assert certs.wait() == 0, certs.text
    assert stat.S_IMODE((folder / "certs" / "server.key").stat().st_mode) == 0o600
    more = ["--host", "none", "--run-dir", "runs/first", "--set", "train_args.comm_round=2"]
    run = forker.start(["run", "federation.yaml", *more], here / "log", cwd=folder)
    assert run.wait(240) == 0, run.text
    lines = [json.loads(line) for line in (folder / "runs" / "first" / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines] == [[0, 1, 2]] * 2
    summary = json.loads((folder / "runs" / "first" / "summary.json").read_text())
    card = (folder / "runs" / "first" / "MODEL_CARD.md").read_text()
    assert f"| {100 * summary['client_accuracy_mean']:.2f} %, {100 * summary['client_accuracy_worst']:.2f} % |" in card
    names = model_file.said(folder / "runs" / "first" / "model.safetensors").class_names
    assert names == ["benign", "malign", "unclear"]
    assert parse.load(folder / "federation.yaml").own_data
