import functools
import shutil

import datasets
import numpy as np
import pytest
from commands import call
from error_messages import message, mistakes
from PIL import Image

from fl_labelskew_plugins.data.image_folder import TREE, ImageFolder, list_images
from fl_labelskew_plugins.data.pictures import decode

load, load_test = (functools.partial(read, ImageFolder) for read in (datasets.load, datasets.load_test))
checked = functools.partial(call, "data", "check", "image_folder")
HOSPITALS = ("north", "south", "coast")


def image(path, colour=(200, 100, 50)):
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "L" if isinstance(colour, int) else "RGB"
    Image.new(mode, (40, 30), colour).save(path)


def test_parts(tmp_path):
    for c, name in enumerate(("zebra", "ant", "cat")):
        for i in range(3):
            image(tmp_path / "train" / name / f"{i}.png", (80 * c, 10, 20))
        image(tmp_path / "test" / name / "0.JPEG", (80 * c, 10, 20))
    (tmp_path / "train" / "ant" / "Thumbs.db").write_text("no image")
    (tmp_path / "train" / ".hidden").mkdir()
    data = load(tmp_path, image_size=16)
    assert data.class_names == ["ant", "cat", "zebra"]
    assert data.train.x.shape == (9, 3, 16, 16)
    assert data.train.x.dtype == np.uint8
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.test.y.tolist() == [0, 1, 2]
    assert data.train.x[3, :, 8, 8].tolist() == [160, 10, 20]
    assert data.mean == pytest.approx((80 / 255, 10 / 255, 20 / 255))
    assert data.std[1:] == (1.0, 1.0)


def test_one_tree_is_split(tmp_path):
    for c in range(2):
        for i in range(10):
            image(tmp_path / f"class{c}" / f"{i}.png", 100 * c + i)
    data = load(tmp_path, channels=1, image_size=8)
    assert data.train.x.shape == (16, 1, 8, 8)
    assert np.bincount(data.test.y).tolist() == [2, 2]
    assert (data.test.x[:, 0, 0, 0] // 100).tolist() == data.test.y.tolist()
    for i in range(3):
        (tmp_path / "class0" / f"{i}.png").write_bytes(b"")
    data = load(tmp_path, channels=1, image_size=8, on_bad_sample="skip", test_fraction=0.4)  # of the valid pictures
    for part, counts in ((data.train, [4, 6]), (data.test, [3, 4])):
        assert np.bincount(part.y).tolist() == counts
        assert (part.x[:, 0, 0, 0] // 100).tolist() == part.y.tolist()
    image(tmp_path / "alone" / "train" / "a" / "0.png")
    image(tmp_path / "alone" / "train" / "a" / "1.png")
    assert len(load(tmp_path / "alone", test_fraction=0.5).test.y) == 1


def test_the_centre_is_cut_out(tmp_path):
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = (255, 0, 0)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decode(tmp_path / "wide.png", size=20, channels=3) == np.array([255, 0, 0])[:, None, None]).all()
    for size in ((1, 1), (7, 500), (500, 7), (31, 33)):
        Image.new("RGBA", size, (9, 9, 9, 9)).save(tmp_path / "x.png")
        assert decode(tmp_path / "x.png", size=32, channels=3).shape == (3, 32, 32)
        assert decode(tmp_path / "x.png", size=32, channels=1).shape == (1, 32, 32)


def test_broken_images_are_named(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3)).astype(np.uint8)).save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    path = tmp_path / "tree" / "a" / "p\x1b[31m.jpg"
    image(tmp_path / "tree" / "a" / "good.jpg")
    for content in (b"", b"<html>", whole[:2000], whole[:30]):
        path.write_bytes(content)
        text = message(lambda: load(tmp_path / "tree"))
        assert text.startswith(f"{path.parent}/p?[31m.jpg: is not a valid image")
        assert ImageFolder().broken(tmp_path / "tree")[0] in text


def broken_tree(root, broken):
    """Ten pictures of each of two classes in each part, the first ``broken`` of all of them empty files."""
    files = [root / part / name / f"{i}.png" for part in ("train", "test") for name in "ab" for i in range(10)]
    for i, file in enumerate(files):
        image(file)
        if i < broken:
            file.write_bytes(b"")
    return files


def test_all_broken_pictures_are_reported_at_once_or_skipped(tmp_path, capsys):
    files = broken_tree(tmp_path, 5)
    files[25].write_bytes(b"<html>")  # in test/
    bad = mistakes(lambda: load(tmp_path))
    assert [line.partition(": is not a valid image (")[0] for line in bad] == [*map(str, files[:5]), str(files[25])]
    assert bad[-1].endswith("; to skip them: data_args.on_bad_sample: skip")
    data = load(tmp_path, on_bad_sample="skip")
    assert (np.bincount(data.train.y).tolist(), np.bincount(data.test.y).tolist()) == ([5, 10], [9, 10])
    assert len(data.train.x) == 15
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("warning: ") and line.endswith("; skipped") for line in lines)
    assert data.fingerprint == load(tmp_path, on_bad_sample="skip").fingerprint


def test_a_deep_check_opens_every_file_and_lists_the_broken_ones(tmp_path):
    files = broken_tree(tmp_path, 0)
    assert checked(tmp_path).stdout.splitlines()[-1].endswith(": complete")
    assert checked(tmp_path, "--deep").stdout.splitlines()[-1].endswith(": complete, every file opened")
    broken_tree(tmp_path, 30)
    checked(tmp_path)  # only names
    result = checked(tmp_path, "--deep", code=1)
    broken = [line.partition(": is not a valid image (")[0] for line in result.stdout.splitlines()[-30:]]
    assert broken == [*map(str, files[:30])]
    assert result.stderr == f"error: data set image_folder in {tmp_path}: 30 broken files\n"


def hospitals(root, *below):
    for place in HOSPITALS:
        for name in ("benign", "malign"):
            for i in range(5):
                image(root.joinpath(*below) / place / name / f"{i}.png")


def test_hospitals_with_folders_of_classes_are_groups(tmp_path):
    hospitals(tmp_path)
    data = load(tmp_path)
    assert (data.group_names, data.class_names) == (["coast", "north", "south"], ["benign", "malign"])
    assert (len(data.train.y), len(data.test.y)) == (24, 6)
    layout = "3 groups (coast, north, south), 2 classes (benign, malign); test part: 20 % of each group's pictures"
    assert data.notes == {"layout.txt": f"{layout}\n"}
    assert ("layout", layout, "any") in ImageFolder().survey(tmp_path)
    np.testing.assert_array_equal(data.test.x[data.test.groups == 1], load(tmp_path / "north").test.x)
    assert load_test(tmp_path).fingerprint == data.fingerprint
    assert load(tmp_path, class_names=("malign", "other", "benign")).group_names == ["coast", "north", "south"]
    (tmp_path / "notes").mkdir()
    assert "no images in notes" in message(lambda: load(tmp_path))
    assert load(tmp_path, groups=("north", "south")).group_names == ["north", "south"]
    (tmp_path / "notes").rmdir()
    named = load(tmp_path, class_names=("south", "north", "coast"), test_fraction=0.5)
    assert (named.class_names, named.group_names) == (["south", "north", "coast"], [])


@pytest.mark.parametrize("folders", [("cat/x", "dog/y"), ("cat/x", "dog/x"), ("cat/x", "dog/x", "dog/y", "cow/z")])
def test_folders_that_may_be_classes_or_groups_are_refused(tmp_path, folders):
    for folder in folders:
        for i in range(2):
            image(tmp_path / folder / f"{i}.png")
    line = message(lambda: load(tmp_path))
    assert f"{tmp_path / 'cat'} contains folders (x) but no images, so " in line
    assert " could be classes or groups (such as hospitals). List classes in data_args.class_names" in line
    upper, lower = ({folder.split("/")[level] for folder in folders} for level in (0, 1))
    assert load(tmp_path, groups=tuple(upper), test_fraction=0.5).class_names == sorted(lower)
    assert load(tmp_path, class_names=tuple(lower), test_fraction=0.5).group_names == sorted(upper)
    assert load(tmp_path, class_names=tuple(upper), test_fraction=0.5).class_names == [*upper]


def test_mistakes_of_all_folders_are_raised_together(tmp_path):
    for name in ("north/train/a", "north/test/b", "north/test/c", "south/train/a"):
        image(tmp_path / name / "0.png")
    for name in ("north/train/x", "north/train/y", "north/test/x", "south/train/z"):
        (tmp_path / name).mkdir()
    start = f"data set image_folder: {tmp_path}/"
    found = [line.removeprefix(start).partition(";")[0] for line in mistakes(lambda: load(tmp_path))]
    assert found == ["north/train: no images in x, y", "north/test: no images in x", "south/train: no images in z"]
    for path in [*tmp_path.glob("*/*/[xyz]")]:
        path.rmdir()
    found = [line.partition("0.png: ")[2].partition(";")[0] for line in mistakes(lambda: load(tmp_path))]
    assert found == [f"test class '{name}' is not one of the 1 classes in training" for name in "bc"]
    for i in range(25):
        (tmp_path / f"{i:02}").mkdir()
    text = message(lambda: list_images(tmp_path.glob("[0-9]*"), "x"))
    assert f"no images in {', '.join(f'{i:02}' for i in range(20))}, and 5 more; add some" in text


@pytest.mark.parametrize("part", ["test", "val"])
def test_a_test_part_without_a_training_part_is_not_read_as_a_class(tmp_path, part):
    for name in HOSPITALS:
        image(tmp_path / name / "0.png")
    image(tmp_path / part / "benign" / "0.png")
    line = message(lambda: load(tmp_path))
    read = ", ".join(sorted([*HOSPITALS, part]))
    assert f"{tmp_path} has {part}/ but no train/, so {read} would be read as classes. Use train/" in line
    assert f"has {part}/ but no train/" in " ".join(checked(tmp_path, code=1).stdout.split())
    assert load_test(tmp_path).class_names == ["benign"]  # the server's


def test_unsuitable_folders(tmp_path):
    assert "data_cache_dir is not set" in message(lambda: load(None))
    assert "none is not a folder" in message(lambda: load(tmp_path / "none"))
    assert "has no class folders" in message(lambda: load(tmp_path))
    hospitals(tmp_path, "train")
    line = message(lambda: load(tmp_path))
    assert f"{tmp_path / 'train' / 'coast'} contains folders (benign, malign) but no images, " in line


@pytest.mark.parametrize("part", ["test", "val"])
def test_the_test_part_can_be_read_separately(tmp_path, part):
    for name, shift in (("train", 0), (part, 7)):
        for c, label in enumerate(("b", "a")):
            image(tmp_path / "parts" / name / label / "0.png", (80 * c + shift, 10, 20))
            image(tmp_path / "one" / label / f"{name}.png", (80 * c + shift, 10, 20))
    for root in (tmp_path / "parts", tmp_path / "one"):
        whole, data = load(root, test_fraction=0.5), load_test(root, test_fraction=0.5)
        datasets.assert_alone(data, whole)
    (tmp_path / "parts" / "train").rename(tmp_path / "elsewhere")
    data = load_test(tmp_path / "parts", image_size=8)
    assert data.class_names == ["a", "b"]
    assert (data.test.y.tolist(), data.test.x[:, 0, 0, 0].tolist()) == ([0, 1], [87, 7])
    assert (data.train.x.shape, data.train.y.shape) == ((0, 3, 8, 8), (0,))
    assert data.mean == pytest.approx((47 / 255, 10 / 255, 20 / 255))


def tree(root, **places):
    """Pictures of each place's parts and classes, ``place={"train": {"a": 3}}``; each place with its own colour."""
    for place, parts in places.items():
        for part, classes in parts.items():
            for name, count in classes.items():
                for i in range(count):
                    colour = (len(place) * 20 + i, 90 if part == "train" else 180, ord(name[0]))
                    image(root / place / part / name / f"{i}.png", colour)


def test_a_tree_of_hospitals_is_read_as_groups(tmp_path):
    tree(tmp_path, south={"train": {"malign": 4, "benign": 2}, "val": {"benign": 1}})
    tree(tmp_path, north={"train": {"benign": 3}, "test": {"benign": 2, "malign": 1}})
    data = load(tmp_path, image_size=8)
    assert data.class_names == ["benign", "malign"]  # of all of them together
    assert data.group_names == ["north", "south"]
    assert data.train.groups.tolist() == [0] * 3 + [1] * 6
    assert data.train.y.tolist() == [0] * 3 + [0] * 2 + [1] * 4
    assert (data.test.groups.tolist(), data.test.y.tolist()) == ([0, 0, 0, 1], [0, 0, 1, 0])
    assert set(data.train.x[:, 1].ravel()) == {90}
    assert set(data.test.x[:, 1].ravel()) == {180}
    one = load(tmp_path, image_size=8, groups=("south",))
    assert (one.group_names, len(one.train.y), set(one.train.groups)) == (["south"], 6, {0})
    alone = load(tmp_path / "south", image_size=8)  # as in a federation
    np.testing.assert_array_equal(alone.train.x, data.train.x[3:])
    assert alone.train.groups is None
    assert not alone.group_names


def test_a_group_without_a_test_part_is_split_like_a_single_data_set(tmp_path):
    north = {"train": {"a": 6}, "test": {"a": 2}}
    tree(tmp_path, coast={"train": {"a": 10, "b": 5}}, north=north, tiny={"train": {"b": 1}})
    data = load(tmp_path, image_size=8, seed=3)
    assert np.bincount(data.train.groups).tolist() == [12, 6, 1]
    assert np.bincount(data.test.groups, minlength=3).tolist() == [3, 2, 0]
    alone = load(tmp_path / "coast", image_size=8, seed=3)
    for part, whole in ((alone.train, data.train), (alone.test, data.test)):
        np.testing.assert_array_equal(part.x, whole.x[whole.groups == 0])
    shutil.rmtree(tmp_path / "north" / "test")
    assert np.bincount(load(tmp_path, image_size=8).test.groups, minlength=3).tolist() == [3, 1, 0]
    line = message(lambda: load(tmp_path, image_size=8, groups=("tiny",)))
    assert "leaves no test sample; use more samples of a class" in line


def test_broken_pictures_of_groups(tmp_path, capsys):
    tree(tmp_path, north={"train": {"a": 3}, "test": {"a": 1}}, south={"train": {"a": 2}, "test": {"a": 1}})
    for i in range(2):
        (tmp_path / "south" / "train" / "a" / f"{i}.png").write_bytes(b"")
    assert checked(tmp_path, "--deep", code=1).stderr.endswith(": 2 broken files\n")
    line = message(lambda: load(tmp_path, on_bad_sample="skip"))
    folder = tmp_path / "south" / "train"
    assert f"no valid image in {folder}; use valid images, or list the other folders in data_args.groups" in line
    assert len(load(tmp_path, groups=("north",)).train.y) == 3
    assert capsys.readouterr().err.count("skipped") == 2


def test_unsuitable_trees_of_groups(tmp_path):
    tree(tmp_path, north={"train": {"a": 3}}, south={"train": {"a": 3}})
    tree(tmp_path, **{"docs\x1b[31m": {"x": {"a": 1}}})
    line = message(lambda: load(tmp_path))
    assert f"{tmp_path}: train/ is missing in docs?[31m, but exists in north; use <group>/train/<class>/<" in line
    assert len(load(tmp_path, groups=("north", "south")).group_names) == 2
    line = message(lambda: load(tmp_path, groups=("north", "nord")))
    assert line == f"data_args.groups: nord is missing in {tmp_path}; use one of north, south"
    line = message(lambda: load(tmp_path / "north", groups=("south",)))
    assert line.endswith(f"south is missing in {tmp_path / 'north'}; use {TREE}")
    tree(tmp_path / "more", **{"odd\x1b": {"train": {"a": 3}}})
    assert load(tmp_path / "more").group_names == ["odd?"]


def test_a_server_reads_the_test_parts_of_all_groups(tmp_path):
    tree(tmp_path / "whole", north={"train": {"a": 3}, "test": {"a": 1}}, south={"train": {"b": 3}, "test": {"b": 2}})
    whole, data = load(tmp_path / "whole"), load_test(tmp_path / "whole")
    datasets.assert_alone(data, whole)
    tree(tmp_path / "alone", north={"test": {"a": 1}}, south={"val": {"b": 2}})
    data = load_test(tmp_path / "alone")
    np.testing.assert_array_equal(data.test.x, whole.test.x)
    assert data.test.groups.tolist() == [0, 1, 1]
    assert (data.group_names, data.class_names) == (["north", "south"], ["a", "b"])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "I", "F"])
def test_pictures_of_all_modes(tmp_path, mode):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 2
    wide = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    whole = Image.fromarray(grey.astype(wide[mode])) if mode in wide else Image.fromarray(grey).convert(mode)
    assert whole.mode == mode
    (tmp_path / "a").mkdir()
    for i in range(2):
        whole.save(tmp_path / "a" / f"{i}.tif")
    data = load(tmp_path, image_size=8, test_fraction=0.5)
    expected = 255 * (grey > 127) if mode == "1" else grey
    np.testing.assert_allclose(data.train.x[0], np.broadcast_to(expected, (3, 8, 8)), atol=255 if mode == "1" else 1)
    checked(tmp_path, "--deep")
    if mode in wide:
        Image.fromarray(grey.astype(wide[mode]) * 500).save(tmp_path / "a" / "x.tif")
        line = "x.tif: is not an 8-bit image (its values go up to 63000); scale it to 0..255"
        assert line in message(lambda: load(tmp_path))
        assert line in checked(tmp_path, "--deep", code=1).stdout
