"""CINIC-10, Tiny-ImageNet, an ImageNet subset, HyperKvasir and ODIR: their own layouts, and what goes wrong."""

import shutil

import numpy as np
import pytest
from datasets import load, load_test
from fl_labelskew_registry import LabelSkewError, MistakesError
from mistakes import message

from fl_labelskew_plugins.data import fakes, files
from fl_labelskew_plugins.data.image_folder import ImageFolder
from fl_labelskew_plugins.data.image_sets import CINIC10, ODIR, HyperKvasir, ImageNetSubset, TinyImageNet

KINDS = [CINIC10, TinyImageNet, ImageNetSubset, HyperKvasir, ODIR]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_data_set_says_where_it_comes_from(tmp_path, kind):
    for folder in (tmp_path, tmp_path / "none", None):
        text = message(lambda folder=folder: kind().check(folder, download=True))  # nobody downloads these
        assert text.startswith(f"data set {kind.name}: ")
        assert text.endswith(f"get it from {kind.source}")
        assert "GB" in kind.source or "MB" in kind.source
    assert [row[0] for row in kind().survey(tmp_path)] == list(kind.needed) + ["validation images"] * (kind is CINIC10)
    assert {row[1] for row in kind().survey(tmp_path)} == {"missing"}


def test_cinic10_with_and_without_valid(tmp_path):
    CINIC10().fake(tmp_path / "CINIC-10", samples=100, seed=0)  # as the archive unpacks
    data = load(CINIC10, tmp_path)
    assert (len(data.train.y), len(data.test.y)) == (60, 20)
    assert data.class_names[:2] == ["airplane", "automobile"]
    assert data.mean == (0.47889522, 0.47227842, 0.43047404)
    more = load(CINIC10, tmp_path, valid="train")
    assert len(more.train.y) == 80
    np.testing.assert_array_equal(more.train.x[:60], data.train.x)
    np.testing.assert_array_equal(more.test.x, data.test.x)
    rows = [("training images", "60", "90000"), ("test images", "20", "90000"), ("classes", "10", "10")]
    rows.append(("validation images", "20", "90000"))
    assert CINIC10().survey(tmp_path) == CINIC10(CINIC10.Params(valid="train")).survey(tmp_path) == rows
    shutil.rmtree(tmp_path / "CINIC-10" / "valid")
    assert CINIC10().survey(tmp_path)[-1] == ("validation images", "missing", "90000")
    assert "cinic10: no valid in" in message(lambda: load(CINIC10, tmp_path, valid="train"))
    shutil.rmtree(tmp_path / "CINIC-10" / "train")  # a server that only tests
    alone = load_test(CINIC10, tmp_path)
    np.testing.assert_array_equal(alone.test.x, data.test.x)
    assert (alone.class_names, alone.mean) == (data.class_names, data.mean)
    assert "no train in" in message(lambda: load(CINIC10, tmp_path))


def test_a_test_part_of_known_classes_is_read_without_training(tmp_path, monkeypatch):
    CINIC10().fake(tmp_path, samples=60, seed=0)
    for path in (tmp_path / "train").rglob("*.png"):
        path.write_bytes(b"broken")
    assert len(load_test(CINIC10, tmp_path).test.y) == 12
    with pytest.raises(MistakesError) as error:
        load(CINIC10, tmp_path)
    *lines, last = error.value.mistakes
    assert len(lines) == 20
    assert all("is not a sound image" in line for line in lines)
    assert last == "and 16 more errors; data_args.on_bad_sample: skip leaves them out"
    with pytest.raises(LabelSkewError, match="has a part without any sound image"):
        load(CINIC10, tmp_path, on_bad_sample="skip")


def test_classes_that_are_missing_or_unknown(tmp_path):
    CINIC10().fake(tmp_path, samples=100, seed=0)
    shutil.rmtree(tmp_path / "train" / "frog")
    data = load(CINIC10, tmp_path)  # a silo may lack some
    assert len(data.class_names) == 10
    assert 6 not in data.train.y
    assert ("class frog", "missing", "images") in CINIC10().survey(tmp_path)
    (tmp_path / "train" / "cat").rename(tmp_path / "train" / "lynx")
    assert "class 'lynx' is not one of the 10 of data set cinic10; remove it" in message(
        lambda: load(CINIC10, tmp_path)
    )
    shutil.rmtree(tmp_path / "train" / "lynx")
    (tmp_path / "train" / "horse" / "x.png").write_bytes(b"<html>")
    assert "x.png: is not a sound image" in message(lambda: load(CINIC10, tmp_path))
    for path in (tmp_path / "train" / "horse").iterdir():
        path.unlink()
    assert "data set cinic10: " in message(lambda: load(CINIC10, tmp_path))
    assert "no images in horse" in CINIC10().survey(tmp_path)[0][2]


def test_tiny_imagenet(tmp_path):
    TinyImageNet().fake(tmp_path, samples=None, seed=0)
    data = load(TinyImageNet, tmp_path)
    assert (len(data.train.y), len(data.test.y)) == (600, 200)
    assert data.class_names == (tmp_path / "tiny-imagenet-200" / "wnids.txt").read_text().split()
    np.testing.assert_array_equal(load(TinyImageNet, tmp_path / "tiny-imagenet-200").test.y, data.test.y)
    small = load(TinyImageNet, tmp_path, image_size=8)
    assert small.train.x.shape == (600, 3, 8, 8)
    next((tmp_path / "tiny-imagenet-200" / "val" / "images").iterdir()).unlink()
    assert ("test images", "199", "10000") in TinyImageNet().survey(tmp_path)
    assert "is not a sound image (" in message(lambda: load(TinyImageNet, tmp_path))
    shutil.rmtree(tmp_path / "tiny-imagenet-200" / "val")
    assert "data set tiny_imagenet: no val in" in message(lambda: load(TinyImageNet, tmp_path))


def test_an_imagenet_subset_has_the_classes_that_are_there(tmp_path):
    ImageNetSubset().fake(tmp_path, samples=60, seed=0)
    data = load(ImageNetSubset, tmp_path)
    assert data.class_names == sorted(path.name for path in (tmp_path / "train").iterdir())
    assert data.mean == (0.485, 0.456, 0.406)
    shutil.rmtree(tmp_path / "val")  # without it, a test part is split off
    assert len(load(ImageNetSubset, tmp_path).test.y) == 12
    names = ", ".join([*data.class_names[:9], f"... {data.class_names[-1]}"])
    rows = [("images", "48", "any"), ("classes", "12", "12"), ("names", names, "any")]
    assert ImageNetSubset().survey(tmp_path) == rows


def test_hyperkvasir(tmp_path):
    HyperKvasir().fake(tmp_path, samples=120, seed=0)
    data = load(HyperKvasir, tmp_path, image_size=16)
    assert len(data.class_names) == 23
    assert data.class_names == sorted(data.class_names)
    assert len(data.test.y) == 23
    folder = tmp_path / "labeled-images" / "lower-gi-tract" / "pathological-findings" / "polyps"
    polyps = data.class_names.index("polyps")
    labels = np.concatenate([data.train.y, data.test.y])
    assert (labels == polyps).sum() == len(list(folder.iterdir())) > 0
    again = load(HyperKvasir, tmp_path / "labeled-images", image_size=16)
    np.testing.assert_array_equal(again.train.x, data.train.x)
    assert not np.array_equal(load(HyperKvasir, tmp_path, seed=1, image_size=16).test.x, data.test.x)
    two = load(HyperKvasir, tmp_path, image_size=16, class_names=("polyps", "ileum"))  # the others are passed over
    assert (two.class_names, set(two.train.y)) == (["polyps", "ileum"], {0, 1})
    shutil.rmtree(tmp_path / "labeled-images" / "upper-gi-tract")
    assert "no upper-gi-tract in" in message(lambda: load(HyperKvasir, tmp_path))


def test_some_classes_of_a_known_set(tmp_path):
    HyperKvasir().fake(tmp_path / "a", samples=69, seed=0)
    data = load(HyperKvasir, tmp_path / "a", image_size=8, class_names=("polyps", "cecum"), test_fraction=0.4)
    assert data.class_names == ["polyps", "cecum"]
    assert (np.bincount(data.train.y).tolist(), np.bincount(data.test.y).tolist()) == ([2, 2], [1, 1])
    text = message(lambda: load(HyperKvasir, tmp_path / "a", class_names=("polyps", "polyp")))
    assert "data_args.class_names: 'polyp' is no class of data set hyperkvasir; allowed: barretts, " in text
    CINIC10().fake(tmp_path / "b", samples=60, seed=0)
    data = load(CINIC10, tmp_path / "b", class_names=("truck", "cat", "dog"))
    assert set(data.train.y) == set(data.test.y) == {0, 1, 2}
    alone = load_test(CINIC10, tmp_path / "b", class_names=("truck", "cat", "dog"))
    np.testing.assert_array_equal(alone.test.x, data.test.x)
    (tmp_path / "b" / "train" / "frog").rename(tmp_path / "b" / "train" / "toad")
    assert "class 'toad' is not one of the 3" in message(
        lambda: load(CINIC10, tmp_path / "b", class_names=("truck", "cat", "dog"))
    )


def test_odir_keeps_a_patients_eyes_together(tmp_path):
    ODIR().fake(tmp_path, samples=100, seed=0)
    kind = ODIR(ODIR.Params(image_size=8))
    samples, test = kind.find(tmp_path)
    assert test is None
    labels = np.array([kind.known_classes.index(name) for _, name in samples])
    train, test = kind.split(samples, labels, seed=0, where="here")
    patients = [{samples[i][0].name.partition("_")[0] for i in rows} for rows in (train, test)]
    assert not patients[0] & patients[1]
    assert sorted([*train, *test]) == list(range(100))
    assert 14 <= len(test) <= 26
    data = load(ODIR, tmp_path, image_size=8)
    np.testing.assert_array_equal(data.test.y, labels[test])
    assert data.class_names == list("NDGCAHMO")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("['N']", "['X']", "has labels \"['X']\"; use names such as 0_right.jpg and labels such as ['N']"),
        ("['N']", "N", "has labels 'N'; use names such as"),
        ("0_left.jpg\r", "../../0_left.jpg\r", "image '../../0_left.jpg' has labels"),
        ("filename", "file", "image '' has labels"),
        ("labels", "target", "has labels None"),
    ],
)
def test_odir_tables_that_do_not_fit(tmp_path, old, new, says):
    fakes.write(ODIR(), tmp_path, samples=40, seed=0)
    table = tmp_path / "full_df.csv"
    text = table.read_bytes().decode()
    table.write_bytes(text.replace(old, new).encode())
    line = message(lambda: load(ODIR, tmp_path))
    assert line.startswith(f"{table}: ")
    assert says in line
    table.write_text(text.splitlines()[0] + "\n")
    assert "names no image" in message(lambda: load(ODIR, tmp_path))
    table.write_bytes(b"\xff\xfe\x00")
    assert "data set odir: " in message(lambda: load(ODIR, tmp_path))
    table.write_text(f'{text.splitlines()[0]}\n"{"0" * 200_000}\n')
    assert "data set odir: " in message(lambda: load(ODIR, tmp_path))
    (row,) = fakes.adjusted(ODIR().survey(tmp_path), tmp_path)
    assert row[1] == "missing"
    assert "field larger than field limit" in row[2]


def test_what_does_not_fit_memory_is_said_before_it_is_read(tmp_path, monkeypatch):
    ImageFolder().fake(tmp_path, samples=20, seed=0)
    free = 400_000
    monkeypatch.setattr(files, "free_memory", lambda: free)
    size = int((free / 60) ** 0.5)
    assert load(ImageFolder, tmp_path, image_size=size).train.x.nbytes < free
    text = message(lambda: load(ImageFolder, tmp_path, image_size=size + 1))
    assert f"image_folder: 20 images of {size + 1} pixels need 0.0 GB, and 0.0 GB are free" in text
    assert text.endswith("; use a smaller data_args.image_size")
