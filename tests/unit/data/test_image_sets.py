import shutil

import numpy as np
import pytest
from datasets import load, load_test
from error_messages import message

from fl_labelskew_plugins.data import files
from fl_labelskew_plugins.data.image_folder import ImageFolder
from fl_labelskew_plugins.data.image_sets import CINIC10, ODIR, HyperKvasir, ImageNetSubset, TinyImageNet

KINDS = {CINIC10: "CINIC-10", TinyImageNet: "", ImageNetSubset: "", HyperKvasir: "", ODIR: ""}
"""Each data set, and the folder that its archive unpacks to, where the small copy has none."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    for kind, below in KINDS.items():
        kind().fake(folder / kind.name / below, samples=600 if kind is TinyImageNet else 120, seed=0)
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return lambda kind: shutil.copytree(made / kind.name, tmp_path / "copy") / KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_data_set_names_its_source(tmp_path, copy, kind):
    for folder in (tmp_path, tmp_path / "none", None):
        text = message(lambda folder=folder: kind().check(folder, download=True))  # these cannot be downloaded
        assert text.startswith(f"data set {kind.name}: ")
        assert text.endswith(f"get it from {kind.source}")
    root = kind().root(copy(kind))
    kind().check(root, download=False)  # the folder that the archive unpacks to is right as well
    for name in kind.required_paths:
        path = (root / name).rename(tmp_path / "elsewhere")
        assert message(lambda: kind().check(root, download=False)).startswith(f"data set {kind.name}: no {name} in ")
        assert kind().survey(root)[0][1] == "missing"
        path.rename(root / name)


@pytest.mark.parametrize(
    ("kind", "train", "test", "classes", "mean"),
    [
        (CINIC10, 96, 24, ["airplane", "automobile", "truck"], (0.47889522, 0.47227842, 0.43047404)),
        (TinyImageNet, 400, 200, ["n01443537", "n01451456", "n03019418"], (0.4802, 0.4481, 0.3975)),
        (ImageNetSubset, 96, 24, ["n01440764", "n01545493", "n02592783"], (0.485, 0.456, 0.406)),
        (HyperKvasir, 97, 23, ["barretts", "barretts-short-segment", "z-line"], None),
        (ODIR, 97, 23, ["N", "D", "O"], None),
    ],
)
def test_samples_and_labels_of_each_set(made, kind, train, test, classes, mean):
    data = load(kind, made / kind.name, image_size=8)
    assert len(data.train.y) + len(data.test.y) == train + test
    assert abs(len(data.test.y) - test) <= 6 * (kind is ODIR)  # whole patients
    assert [*data.class_names[:2], data.class_names[-1]] == classes
    assert mean in (None, data.mean)
    seen = {what: expected for what, _, expected in kind().survey(made / kind.name)}
    assert seen["classes"] == kind.expected_survey["classes"]
    other = load(kind, made / kind.name, image_size=8, seed=1)
    assert np.array_equal(other.test.x, data.test.x) == (kind not in (HyperKvasir, ODIR))  # split off with the seed


def test_classes_that_are_missing_or_unknown(copy):
    root = copy(CINIC10)
    shutil.rmtree(root / "train" / "frog")
    data = load(CINIC10, root)  # a silo may lack some
    assert len(data.class_names) == 10
    assert 6 not in data.train.y
    assert ("class frog", "missing", "images") in CINIC10().survey(root)
    (root / "train" / "cat").rename(root / "train" / "lynx")
    line = message(lambda: load(CINIC10, root))
    assert "class 'lynx' is not one of the 10 classes of data set cinic10; remove it" in line
    for path in (root / "train" / "horse").iterdir():
        path.unlink()
    assert "no images in horse" in message(lambda: load(CINIC10, root))
    assert "no images in horse" in CINIC10().survey(root)[0][2]


@pytest.mark.parametrize(
    ("kind", "names"), [(HyperKvasir, ("polyps", "cecum")), (CINIC10, ("truck", "cat", "dog"))], ids=str
)
def test_some_classes_of_a_known_set(copy, kind, names):
    root = copy(kind)
    data = load(kind, root, image_size=8, class_names=names, test_fraction=0.4)
    assert data.class_names == [*names]
    assert set(data.train.y) == set(data.test.y) == {*range(len(names))}
    alone = load_test(kind, root, image_size=8, class_names=names, test_fraction=0.4)
    np.testing.assert_array_equal(alone.test.x, data.test.x)
    text = message(lambda: load(kind, root, class_names=("polyps", "polyp", "ox")))
    assert f" is not a class of data set {kind.name}; allowed: " in text


def test_tiny_imagenets_list_of_validation_images(copy):
    root = copy(TinyImageNet) / "tiny-imagenet-200"
    (root / "test" / "images").mkdir(parents=True)  # which have no labels
    assert load(TinyImageNet, root, image_size=8).class_names == [*TinyImageNet.fake_classes]
    next((root / "val" / "images").iterdir()).unlink()
    assert ("test images", "199", "10000") in TinyImageNet().survey(root)
    assert "is not a valid image (" in message(lambda: load(TinyImageNet, root, image_size=8))
    (root / "val" / "val_annotations.txt").write_text("nonsense\n")
    assert "use lines of image, tab, class" in message(lambda: load(TinyImageNet, root))


def test_odir_keeps_a_patients_eyes_together(made):
    kind = ODIR(ODIR.Params(image_size=8))
    samples, test = kind.find(made / "odir", [])
    assert test is None
    labels = np.array([kind.known_classes.index(name) for _, name in samples])
    train, test = kind.split(samples, labels, seed=0, where="here")
    patients = [{samples[i][0].name.partition("_")[0] for i in rows} for rows in (train, test)]
    assert not patients[0] & patients[1]
    assert sorted([*train, *test]) == list(range(120))
    np.testing.assert_array_equal(load(ODIR, made / "odir", image_size=8).test.y, labels[test])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("['N']", "['X']", "has labels \"['X']\"; use names such as 0_right.jpg and labels such as ['N']"),
        ("0_left.jpg\r", "../../0_left.jpg\r", "image '../../0_left.jpg' has labels"),
        ("filename", "file", "image '' has labels"),
        ("labels", "target", "has labels None"),
        (None, "ID,labels,filename\r\n", "has no images"),
        (None, "\xff\xfe\0", "cannot be read"),
        (None, f'ID,labels,filename\r\n"{"0" * 200_000}\r\n', "field larger than field limit"),
    ],
)
def test_odir_tables_that_do_not_match(copy, old, new, says):
    root = copy(ODIR)
    table = root / "full_df.csv"
    table.write_bytes(new.encode("latin-1") if old is None else table.read_bytes().replace(old.encode(), new.encode()))
    assert says in message(lambda: load(ODIR, root))
    ((_, state, why),) = ODIR().survey(root)
    assert state == "missing"
    assert says in why


def test_data_larger_than_memory_are_refused_before_reading(tmp_path, monkeypatch):
    ImageFolder().fake(tmp_path, samples=20, seed=0)
    free = 400_000
    monkeypatch.setattr(files, "free_memory", lambda: free)
    size = int((free / 60) ** 0.5)
    assert load(ImageFolder, tmp_path, image_size=size).train.x.nbytes < free
    text = message(lambda: load(ImageFolder, tmp_path, image_size=size + 1))
    assert f"image_folder: 20 images of {size + 1} pixels need 0.0 GB, but 0.0 GB are free" in text
    assert text.endswith("; use a smaller data_args.image_size")
