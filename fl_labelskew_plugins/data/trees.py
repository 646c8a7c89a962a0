"""What lies in a tree of pictures: folders, the images below them, and their classes."""

import os
from collections.abc import Iterable
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine.text import few

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
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


def list_images(folders: Iterable[Path], where: str) -> Samples:
    """All images below each class's folder, with its name for their class, sorted by it.

    Raises:
        LabelSkewError: there is none, or a class has none; ``where`` is for messages.
    """
    samples: Samples = []
    for folder in folders_among(folders):
        images = images_in(folder)
        if not images:
            raise LabelSkewError(
                f"{where}: {folder} has no images; add one of {', '.join(sorted(SUFFIXES))}, or remove the folder"
            )
        samples += [(path, folder.name) for path in images]
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
