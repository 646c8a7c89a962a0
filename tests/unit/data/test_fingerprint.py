import shutil

import numpy as np
import pytest
from fl_labelskew_registry import Arrays, Data, Images, catalog
from PIL import Image

from fl_labelskew_plugins.data.fingerprint import fingerprint


def of(name, folder=None, seed=0, **params):
    kind = catalog.load("datasets", name)
    return fingerprint(kind(kind.Params(**params)).load(folder, download=False, seed=seed))


def data(x, y, groups=None, names=("a", "b")):
    part = Arrays(np.asarray(x, np.float32), np.asarray(y), groups)
    return Data(part, Arrays(part.x[:1], part.y[:1]), list(names))


def test_fingerprint_depends_on_every_number_name_and_part():
    x, y = np.arange(8).reshape(4, 2), [0, 1, 0, 1]
    base = data(x, y)
    others = [
        data(x + 1e-3, y),
        data(x, [1, 1, 0, 1]),
        data(x[::-1], y),
        data(x.reshape(4, 1, 2), y),
        data(x, y, names=("b", "a")),
        data(x, y, np.arange(4)),
        Data(base.test, base.train, base.class_names),
    ]
    assert len({fingerprint(content) for content in (base, *others)}) == 8
    assert fingerprint(data(np.array(x, order="F"), y)) == fingerprint(base)
    assert fingerprint(Data(Arrays(base.train.x[:0], base.train.y[:0]), base.train, ["a", "b"]))  # a server's
    assert len(fingerprint(base)) == 32


@pytest.mark.parametrize(("name", "samples"), [("image_folder", 40), ("isic2019", 73), ("femnist", 60)])
def test_fingerprint_depends_on_content_not_on_path_or_seed(tmp_path, name, samples):
    kind = catalog.load("datasets", name)
    for folder, seed in (("a", 0), ("b", 1)):
        kind().fake(tmp_path / folder, samples=samples, seed=seed)
    if name == "image_folder":  # so that a part is split off, with the seed
        for folder in "ab":
            shutil.rmtree(tmp_path / folder / "test")
    shutil.copytree(tmp_path / "a", tmp_path / "deep" / "copy")
    params = {"femnist": {"users": 2}, "image_folder": {"image_size": 8}}.get(name, {})
    here = of(name, tmp_path / "a", **params)
    assert of(name, tmp_path / "deep" / "copy", seed=5, **params) == here
    assert of(name, tmp_path / "b", **params) != here


def test_fingerprint_changes_with_one_pixel_or_group(tmp_path):
    for folder in ("one", "two", "three"):
        for name in ("n/train/a", "s/train/a", "s/train/b"):
            (tmp_path / folder / name).mkdir(parents=True)
            for i in range(3):
                Image.new("L", (4, 4), 10 * i).save(tmp_path / folder / name / f"{i}.bmp")
    one = of("image_folder", tmp_path / "one")
    assert of("image_folder", tmp_path / "two", seed=1) == one
    assert of("image_folder", tmp_path / "two", groups=("s",)) != one
    Image.new("L", (4, 4), 11).save(tmp_path / "two" / "s" / "train" / "a" / "1.bmp")  # of the same size in bytes
    (tmp_path / "three" / "n" / "train" / "a" / "2.bmp").rename(tmp_path / "three" / "s" / "train" / "a" / "00.bmp")
    assert len({one, *(of("image_folder", tmp_path / name) for name in ("two", "three"))}) == 3


@pytest.mark.parametrize("name", ["digits", "circles", "synthetic"])
def test_fingerprint_of_generated_data_is_the_same_for_all_seeds(name):
    assert of(name, seed=0) == of(name, seed=1)


def test_fingerprint_of_streamed_pictures_uses_names_and_sizes(tmp_path):
    def of_files(files):
        images, y = Images(files, (3, 8, 8), None), np.zeros(len(files), np.int64)  # nothing reads them
        return fingerprint(Data(Arrays(images, y), Arrays(images[:0], y[:0]), ["a"]))

    def made(folder, sizes):
        (tmp_path / folder).mkdir()
        files = [tmp_path / folder / f"{i}.jpg" for i in range(len(sizes))]
        for file, size in zip(files, sizes, strict=True):
            file.write_bytes(b"x" * size)
        return of_files([str(file) for file in files])

    assert made("two", [3, 4]) == made("one", [3, 4]) != made("three", [3, 5])
    assert of_files(["a:1", "/b:2"]) != of_files(["a:1", "/b:3"])  # parts of archives
