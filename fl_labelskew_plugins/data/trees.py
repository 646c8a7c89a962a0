"""What lies in a tree of pictures: folders, the images below them, and their classes."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.data.files import MOST
from fl_labelskew_plugins.machine.text import few

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
PARTS = ("train", "test", "val")
Samples = list[tuple[Path, str]]


def images_in(folder: Path) -> list[Path]:
    """All images below ``folder``, sorted; anything else is passed over."""
    images: list[Path] = []
    for root, _, names in os.walk(folder):
        images += [Path(root, name) for name in names if Path(name).suffix.lower() in SUFFIXES and name[0] != "."]
    return sorted(images)


def folders_among(paths: Iterable[Path]) -> list[Path]:
    """The folders among some paths, by name, but hidden ones."""
    return sorted((path for path in paths if path.is_dir() and path.name[0] != "."), key=lambda path: path.name)


def train_folder(folder: Path) -> Path:
    """``train/`` if the folder has one, else the folder itself."""
    return folder / "train" if (folder / "train").is_dir() else folder


def class_folders(folder: Path) -> list[str]:
    """The names of a folder's folders; empty if it has an image of its own, or a part such as ``train/``."""
    paths = [path for path in folder.iterdir() if path.name[0] != "."]
    if any(path.suffix.lower() in SUFFIXES for path in paths):  # before is_dir(), a system call for each of many images
        return []
    names = [path.name for path in folders_among(paths)]
    return [] if {*PARTS} & {*names} else names


def overlap(below: Iterable[Sequence[str]], known: Collection[str]) -> bool:
    """Whether folders with these folders ``below`` them are groups, and not classes.

    Those below are classes if one is ``known``, or if there are several and every upper folder shares one with another.

    >>> overlap([["a", "b"], ["b"]], ()), overlap([["a", "b"], ["c", "d"]], ()), overlap([["a"], ["b"]], ["a"])
    (True, False, True)
    """
    holders = Counter(name for names in below for name in names)
    shared = all(any(holders[name] > 1 for name in names) for names in below)
    return not holders.keys().isdisjoint(known) or (len(holders) > 1 and shared)


def list_images(folders: Iterable[Path], where: str) -> Samples:
    """All images below each class's folder, with its name for their class, sorted by it.

    Raises:
        LabelSkewError: there is none, or some classes have none; ``where`` is for messages.
    """
    samples: Samples = []
    empty: list[str] = []
    for folder in folders_among(folders):
        images = images_in(folder)
        samples += [(path, folder.name) for path in images]
        if not images:
            empty.append(folder.name)
    if empty:
        more = f", and {len(empty) - MOST} more" if len(empty) > MOST else ""
        endings = ", ".join(sorted(SUFFIXES))
        raise LabelSkewError(
            f"{where}: no images in {few(empty[:MOST], MOST)}{more}; add some ({endings}), or remove the empty folders"
        )
    if not samples:
        raise LabelSkewError(f"{where} has no class folders; use <class>/<image>")
    return samples


def list_annotated(file: Path) -> Samples:
    """Tiny-ImageNet's validation part: ``images/<name>``, with ``<name> TAB <class> TAB ...`` lines in ``file``.

    Raises:
        LabelSkewError: there is no line, or another one.
    """
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise mistake(file, "is not a list of images and their classes", "lines of image, tab, class")
    return [(file.parent / "images" / row[0], row[1]) for row in rows]


def nested_class(folder: Path, samples: Samples) -> str | None:
    """The first class without an image of its own, unless all of them are in ``images/``; None where there is none."""
    below: dict[str, set[str]] = {}
    for path, name in samples:
        inner = os.path.dirname(path)[len(os.path.join(folder, name)) + 1 :]
        below.setdefault(name, set()).add(inner.partition(os.sep)[0])
    return next((name for name, inner in below.items() if "" not in inner and inner != {"images"}), None)


def held_by(folder: Path, train: Samples, test: Samples) -> str:
    """What a group has, in words."""
    at = len(folder.parts) - 1
    has, tests = ([sample for sample in part if sample[0].parts[at] == folder.name] for part in (train, test))
    classes = sorted({name for _, name in has})
    split = f"{len(has)} training, {len(tests)} test" if tests else f"{len(has)}, of which a part is split off"
    return f"{split}; {few(classes)}"
