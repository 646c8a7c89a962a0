"""Inspection of a user's own data, and the options that it asks for."""

import numpy as np
import pytest
from error_messages import message
from PIL import Image

from fl_labelskew_plugins.front.new.look import look

CLASSES = ["benign", "malign", "unclear"]


def picture(path, side, mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side + 9)).save(path)


def test_folders_of_classes(own):
    seen = look(own / "flat")
    assert (seen.dataset, seen.classes, seen.groups, seen.samples) == ("image_folder", CLASSES, [], 60)
    assert (seen.path, seen.args) == (own / "flat", {"image_size": 32, "channels": 3})
    assert seen.shape == (3, 32, 32)
    seen = look(own / "tree")
    hospitals = ["St. Mary's", "north", "south"]
    assert (seen.classes, seen.groups, seen.samples) == (CLASSES, hospitals, 45)  # the training parts'
    line = message(lambda: look(own / "flat", "class"))
    assert line == "--label: is for tables, and these data are not a table; use neither"


@pytest.mark.parametrize(
    ("side", "mode", "fits"),
    [(5, "L", (1, 8, 8)), (20, "RGB", (3, 16, 16)), (28, "1", (1, 28, 28)), (700, "P", (3, 64, 64))],
)
def test_size_and_colours_are_read_from_the_pictures(tmp_path, side, mode, fits):
    for name in "ab":
        picture(tmp_path / "train" / name / "0.png", side, mode)
    assert look(tmp_path).shape == fits


def test_a_broken_picture_is_skipped(tmp_path):
    for name in "ab":
        picture(tmp_path / name / "0.png", 40)
    (tmp_path / "a" / "1.png").write_text("none")
    assert look(tmp_path).shape == (1, 32, 32)
    for name in "ab":
        (tmp_path / name / "0.png").write_text("none")
    assert message(lambda: look(tmp_path)).endswith("none of the sampled pictures can be opened; use valid pictures")


@pytest.mark.parametrize(("shape", "layout"), [((20, 5, 16, 16), "nchw"), ((20, 16, 16, 5), "nhwc")])
def test_channels_of_an_archive_are_derived_from_its_shape(tmp_path, shape, layout):
    np.savez(tmp_path / "a.npz", x=np.zeros(shape, np.float32), y=np.arange(20) % 2 * 2)
    seen = look(tmp_path / "a.npz")
    assert seen.classes == ["0", "1", "2"]  # a gap in the labels is a class without samples
    assert (seen.args["layout"], seen.shape) == (layout, (5, 16, 16))
    assert seen.notes[0].startswith("layout: ")


def test_a_table(table, tmp_path):
    seen = look(table)
    assert (seen.dataset, seen.path, seen.classes) == ("table", table, CLASSES)
    assert seen.groups == ["coast", "north", "south"]
    assert seen.args == {
        "label": "diagnosis",
        "group": "hospital",
        "features": ["age", "sex", "pressure"],  # and not patient_id
        "categorical": {"sex": ["f", "m"]},
        "missing": "mean",
    }
    assert seen.shape == (4,)
    assert [note.partition(":")[0] for note in seen.notes] == ["features", "categorical", "missing"]
    (tmp_path / "a.csv").write_text(table.read_text() + "p999,50,m,100,north,\n")  # a row without a class
    assert look(tmp_path / "a.csv").args["missing"] == "drop"


def test_unclear_columns_of_a_table_are_asked_for(table, tmp_path):
    text = table.read_text()
    plain = tmp_path / "plain.csv"
    plain.write_text(text.replace("diagnosis", "outcome").replace("hospital", "place"))
    assert message(lambda: look(plain)).endswith(
        "has no column called label, class, target or the like; "
        "use --label with one of patient_id, age, sex, pressure, place, outcome"
    )
    assert look(plain, "outcome").groups == []
    assert look(plain, "outcome", "place").groups == ["coast", "north", "south"]
    assert message(lambda: look(plain, "outcom")).endswith("did you mean outcome?")
    plain.write_text(text.replace("hospital", "class"))
    line = message(lambda: look(plain))
    assert line.endswith("the columns class, diagnosis all fit; use --label with one of them")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.with_name("none"), "does not exist; use a folder of pictures, an .npz file, or a CSV"),
        (lambda path: path.write_text("x") and path, "is neither folder, archive nor table; use a folder of pictures"),
        (lambda path: picture(path / "a" / "0.png", 9) or path, "has only one class (a); use data with at least two"),
    ],
)
def test_invalid_data_are_one_line(tmp_path, make, says):
    assert says in message(lambda: look(make(tmp_path / "data")))
