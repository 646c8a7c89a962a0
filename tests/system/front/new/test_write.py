"""The folders that are written for somebody's own data: they hold no mistake, and train as they are."""

import csv
import itertools
import json
import re
import shlex
import stat

import numpy as np
import pytest
import yaml
from commands import call, errors, parsed
from error_messages import message
from fl_labelskew_registry import LabelSkewError
from PIL import Image

from fl_labelskew_plugins.front.new import write
from fl_labelskew_plugins.front.new.look import OwnData, look
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import model_file
from fl_labelskew_plugins.runtimes.options import RunOptions

HEAD = "# yaml-language-server: $schema=recipe.schema.json\n"


def recipes_of(folder):
    """Each recipe and silo's file in a folder, without a mistake in any."""
    files = sorted(folder.glob("*.yaml"))
    assert all(file.read_text().startswith(HEAD) for file in files)
    call("validate", *files)
    return {file.stem: yaml.safe_load(file.read_text()) for file in files}


def test_pictures_of_classes_are_divided(own, here):
    said = call("new", "simulation", "mine", "--data", own / "flat").output.splitlines()
    assert said == [
        "pictures: 3 classes (benign, malign, unclear); test part: 20 % of each class's pictures",
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


def test_an_archive_s_groups_become_archives(own, here):
    call("new", "federation", "mine", "--data", own / "grouped.npz")
    files = recipes_of(here / "mine")
    federation, whole = files.pop("federation"), np.load(own / "grouped.npz")
    assert federation["data_args"] == {"dataset": "npz", "classes": 3, "input_shape": [1, 8, 8]}
    for group, silo in zip(("coast", "north", "south"), files.values(), strict=True):
        part = np.load(silo["data_args"]["data_cache_dir"])
        np.testing.assert_array_equal(part["x"], whole["x"][whole["groups"] == group])
        np.testing.assert_array_equal(part["y"], whole["y"][whole["groups"] == group])


def test_the_test_part_of_an_archive_is_split_by_group(here):
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


def test_groups_of_a_table_become_tables_of_features(table, here):
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


def test_without_groups_the_number_of_silos_is_required(own, here):
    assert errors("new", "federation", "mine", "--data", own / "flat") == [
        f"{own / 'flat'}: has no groups, such as hospitals, for the silos; use --silos with their number"
    ]
    call("new", "federation", "mine", "--data", own / "flat", "--silos", "2")
    assert recipes_of(here / "mine").keys() == {"federation", "silo-1", "silo-2"}
    assert "all silos' files contain the path of the same data" in (here / "mine" / "README.md").read_text()
    assert errors("new", "federation", "other", "--data", own / "tree", "--silos", "2") == [
        f"--silos 2: {own / 'tree'} has 3 groups, one per silo; use no --silos"
    ]


def test_data_of_one_silo_may_lack_classes(own, here):
    result = call("new", "federation", "one", "--data", own / "flat", "--silos", "2")
    assert result.stderr == (
        f"warning: {own / 'flat'}: has no groups; if these are the data of only one silo, other silos may have more "
        "classes; list all classes with --classes\n"
    )
    classes = ["unclear", "rare", "malign", "benign"]
    result = call("new", "federation", "mine", "--data", own / "flat", "--silos", "2", "--classes", ",".join(classes))
    assert not result.stderr
    assert {tuple(file["data_args"]["class_names"]) for file in recipes_of(here / "mine").values()} == {tuple(classes)}
    (line,) = errors("new", "simulation", "x", "--data", own / "flat", "--classes", "benign,malign")
    assert "class 'unclear' is not one of the 2 classes in data_args.class_names" in line


PLANNED = ("new", "federation", "mine", "--silos", "3", "--classes", "benign,malign,unclear")


def test_a_federation_without_data_names_its_form(here):
    call(*PLANNED, "--image-size", "32")
    files = recipes_of(here / "mine")
    of_all = {"dataset": "image_folder", "image_size": 32, "channels": 3, "class_names": PLANNED[-1].split(",")}
    assert files.pop("federation")["data_args"] == {**of_all, "input_shape": [3, 32, 32]}
    assert [file["data_args"] for file in files.values()] == [of_all] * 3
    assert "silo-1.yaml /data/pictures" in (here / "mine" / "README.md").read_text()
    file = here / "mine" / "silo-1.yaml"
    line = message(lambda: start(RunOptions(here / "mine" / "federation.yaml", dry_run=True, host="none")))
    assert line.startswith(f"{file}: data set image_folder: data_args.data_cache_dir is not set; use ")
    assert line.endswith(f"; to set the path: labelskew silo data {file} PATH")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            PLANNED[:5],
            "labelskew new federation: without --data, number of silos and classes are missing; "
            "use --silos 3 --classes a,b with --image-size or --columns, or --data",
        ),
        ((*PLANNED, "--label", "x"), "--label: is for tables; use --columns with the table's features, or no --label"),
        ((*PLANNED[:-1], "a,a"), "--classes a,a: expected at least two different names; use --classes benign,malign"),
        (
            (*PLANNED, "--data", ".", "--columns", "age"),
            "--columns: describes data on other machines, but --data is given; use only one of the two",
        ),
        (
            (*PLANNED, "--columns", "age,bmi=10..50"),
            "--columns: age: has no range, but others do; give all of them a range, or none",
        ),
        (
            (*PLANNED, "--columns", "age", "--secure"),
            "--secure: numeric columns need a range for their normalisation; use --columns age=0..100",
        ),
        (
            ("new", "federation", "mine", "--silos", "2", "--classes", "a,b", "--secure"),
            "--secure: 2 silos, but a sum over fewer than 3 does not hide a silo; use at least 3 silos, or no --secure",
        ),
    ],
)
def test_an_invalid_description_is_one_line(here, options, line):
    assert errors(*options) == [line]


def test_described_lists_all_column_errors(here):
    lines = errors(*PLANNED, "--columns", "age,age,sex=f,bmi=9..1,,a=b/b")
    assert [line.split(": ")[1] for line in lines] == ["age", "sex=f", "bmi=9..1", "", "a=b/b"]
    assert errors(*PLANNED, "--columns", "age=0..100,label=1..2") == [
        "--columns: label: is the label, not a feature; use --columns without it, or another --label"
    ]


@pytest.mark.parametrize("kind", ["tree", "table.csv", "grouped.npz"])
def test_a_secure_recipe_has_mean_and_std(own, here, kind):
    call("new", "federation", "mine", "--data", own / kind, "--secure")
    federation = recipes_of(here / "mine")["federation"]
    assert (federation["comm_args"]["secure_aggregation"], federation["comm_args"]["min_clients"]) == (True, 3)
    args = federation["data_args"]
    if kind == "tree":
        assert (args["mean"], "std" in args) == ("imagenet", False)
    else:
        assert len(args["mean"]) == len(args["std"]) == args["input_shape"][0]
    if kind == "table.csv":
        assert args["mean"][:2] == [pytest.approx(50, abs=3), pytest.approx(0.5, abs=0.1)]


def hospital(folder, name, classes, rows=24, size=20):
    """Pictures and a table of one hospital."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["sex", "age", "outcome"])
        for i in range(rows):
            number = i % len(classes)
            file_of = folder / name / classes[number] / f"{i}.png"
            file_of.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (size, size), (80 * number, 10, 20)).save(file_of)
            lines.writerow(["fm"[i % 2], 30 + 20 * number + i % 5, classes[number]])
    return folder / name


def test_a_silos_data_are_checked_and_written_into_its_file(here):
    call(*PLANNED, "--image-size", "32")
    file, place = here / "mine" / "silo-2.yaml", hospital(here, "north", ["benign", "unclear"])
    before = file.read_text()
    result = call("silo", "data", file, "north")
    assert result.stdout.splitlines() == [
        "class    training  test",
        "benign   10        2",
        "malign   0         0",
        "unclear  10        2",
        "all      20        4",
        "no training samples of malign; a silo need not have all classes",
        f"{file}: data_args.data_cache_dir is now {place}",
    ]
    written = file.read_text()
    assert written == before.replace("data_args:\n", f'data_args:\n  data_cache_dir: "{place}"\n')
    call("silo", "data", file, place)
    assert file.read_text() == written
    call("validate", file)
    hospital(here, "east", ["benign", "other", "odd"])
    lines = errors("silo", "data", file, "east")
    named = [line.partition(": class ")[2].partition(" is not one of the 3 ")[0] for line in lines]
    assert named == ["'odd'", "'other'"]
    (line,) = errors("silo", "data", file, "none")
    assert line == f"{here / 'none'}: does not exist; use the file or folder of this silo's data"
    (line,) = errors("silo", "data", here / "mine" / "federation.yaml", place)
    assert "federation.yaml: is not a silo's own file; use a file listed in client_specific" in line
    file.write_text(before.replace("image_size: 32", "image_size: 16"))
    assert errors("silo", "data", file, place) == [
        "data_args.input_shape: [3, 32, 32] in the recipe, but [3, 16, 16] in the data; use input_shape: [3, 16, 16]"
    ]
    assert "data_cache_dir: " not in file.read_text().replace("# data_cache_dir: ", "")
    # all recipes that name the file are checked
    text = (here / "mine" / "federation.yaml").read_text()
    (here / "mine" / "other.yaml").write_text(text.replace("input_shape: [3, 32, 32]", "input_shape: [3, 16, 16]"))
    (line,) = errors("silo", "data", here / "mine" / "silo-1.yaml", place)
    assert line.startswith("data_args.input_shape: [3, 16, 16] in the recipe, but [3, 32, 32] in the data")


def trained(folder, forker):
    """The run of two rounds of a federation with three silos, and its lines."""
    for words in (
        ["certs", "new", "--silos", "3"],
        ["run", "federation.yaml", "--host", "none", "--run-dir", "run", "--set", "train_args.comm_round=2"],
    ):
        process = forker.start(words, folder / "log", cwd=folder, fork_children=True)
        assert process.wait(240) == 0, process.text
    assert [line["clients"] for line in read_lines(folder / "run" / "metrics.jsonl")] == [[0, 1, 2]] * 2
    return folder / "run"


def test_a_secure_federation_trains_once_silos_have_data(here, forker):
    call(*PLANNED, "--columns", "age=0..100,sex=f/m", "--label", "outcome", "--secure")
    folder = here / "mine"
    args = yaml.safe_load((folder / "federation.yaml").read_text())["data_args"]
    assert (args["mean"], args["std"], args["input_shape"]) == ([50, 0.5, 0.5], [25, 0.5, 0.5], [3])
    for rank, classes in enumerate((["benign", "malign"], ["malign", "unclear"], ["benign", "unclear"]), 1):
        place = hospital(here, f"hospital{rank}", classes).with_suffix(".csv")
        assert "all      20        4\n" in call("silo", "data", folder / f"silo-{rank}.yaml", place).stdout
    text = place.read_text()
    place.write_text(text.replace("f,", "x,").replace("m,", "y,"))
    assert errors("silo", "data", folder / "silo-3.yaml", place) == [
        f"{place}: column sex: contains x, y, which data_args.categorical omits; use one of f, m"
    ]
    place.write_text(text)
    trained(folder, forker)


def test_nothing_is_overwritten_and_failures_leave_no_files(own, here, monkeypatch):
    (here / "mine").mkdir()
    (here / "mine" / "notes").write_text("mine")
    for folder, line in (
        ("mine", "mine: is not empty; use a new or empty folder"),
        (own / "flat" / "mine", f"{own / 'flat' / 'mine'}: is inside the data; use a folder outside of them"),
    ):
        assert errors("new", "simulation", folder, "--data", own / "flat") == [line]

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_finish", full)
    with pytest.raises(LabelSkewError, match=r"other: cannot be written: No space left on device"):
        write.simulation(look(own / "flat"), here / "other")
    assert [path.name for path in here.iterdir()] == ["mine"]


def test_names_of_groups_enter_no_path_or_log_line(here):
    names = ["../x", "..", "README", "federation", "North", "north", "a\nb", "<b>|`", "ü" * 200]
    stems = write.file_names(names)
    assert len({stem.lower() for stem in stems}) == len(names)
    assert all(re.fullmatch(r"\w[\w.-]{0,62}", stem) for stem in stems)
    args = {"data_cache_dir": str(here / "data")}
    seen = OwnData("image_folder", here / "data", args, (3, 8, 8), ["a\x1b", "b"], names, 9)
    write.federation(seen, here / "mine", None)
    assert len(recipes_of(here / "mine")) == len(names) + 1
    readme = (here / "mine" / "README.md").read_text()
    assert "<b>" not in readme
    assert "\x1b" not in readme + (here / "mine" / "federation.yaml").read_text()


def test_a_federation_of_very_many_groups_is_refused(here):
    seen = OwnData("npz", here, {"data_cache_dir": "a.npz"}, (4,), ["0", "1"], [str(g) for g in range(101)], 999)
    assert message(lambda: write.federation(seen, here / "mine", None)).endswith(
        "has 101 groups, one per silo; use 100 at most, or labelskew new simulation"
    )
    write.simulation(seen, here / "mine")
    train = recipes_of(here / "mine")["simulation"]["train_args"]
    assert (train["client_num_in_total"], train["client_num_per_round"]) == (101, 10)


@pytest.mark.parametrize(
    "typed",
    [("simulation", "--data"), ("federation", "--silos", "2", "--data"), (*PLANNED[1:2], *PLANNED[3:], "--secure")],
    ids=" ".join,
)
def test_commands_of_the_readme_are_valid(own, here, typed):
    kind, *more = typed
    call("new", kind, "mine", *more, *([own / "flat"] if "--data" in typed else []))
    readme = (here / "mine" / "README.md").read_text()
    blocks = itertools.chain(*(block.splitlines() for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)))
    commands = [words for line in blocks if (words := shlex.split(line, comments=True))]
    assert {words[0] for words in commands} == {"labelskew"}
    verbs = {words[1] for words in commands}
    assert {"validate", "run", "evaluate", "predict", "export"} <= verbs
    for _, *rest in commands:
        parsed(rest)


@pytest.mark.parametrize("kind", ["flat", "table.csv"])
def test_a_generated_simulation_trains(own, here, kind):
    call("new", "simulation", "mine", "--data", own / kind)
    call("run", "mine/simulation.yaml", "--run-dir", "run", "--quiet", "--set", "train_args.comm_round=6")
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["best_accuracy"] > 0.6  # three classes
    if kind != "flat":
        assert read_lines(here / "run" / "metrics.jsonl")[0]["clients"] == [0, 1, 2]


def test_a_generated_federation_trains(own, here, forker):
    call("new", "federation", "mine", "--data", own / "tree")
    folder = here / "mine"
    readme = (folder / "README.md").read_text()
    assert "\nlabelskew certs new --silos 3 " in readme
    assert recipes_of(folder).keys() == {"federation", "St.-Mary-s", "north", "south"}
    assert (folder / ".gitignore").read_text() == "runs/\ncerts/\ndata/\n"
    run = trained(folder, forker)
    assert stat.S_IMODE((folder / "certs" / "server.key").stat().st_mode) == 0o600
    summary, card = json.loads((run / "summary.json").read_text()), (run / "MODEL_CARD.md").read_text()
    mean, worst = (f"{100 * summary[f'client_accuracy_{part}']:.2f} %" for part in ("mean", "worst"))
    assert mean in card
    assert worst in card
    assert model_file.read_metadata(run / "model.safetensors").class_names == ["benign", "malign", "unclear"]
    assert parse.load(folder / "federation.yaml").own_data
