"""Images in class folders, with or without groups; see docs/data.md."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import MAX_SHOWN, fits, gathered, readable, refuse
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.pictures import OnBadSample, decode, faults, opened, settle
from fl_labelskew_plugins.data.stats import Moments, moments
from fl_labelskew_plugins.machine.files import read_pieces, read_text
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import Indices
from fl_labelskew_plugins.partition.stratified import drawn, joined, picked, stratified

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
PARTS = ("train", "test", "val")
TREE = "<group>/train/<class>/<image> or <group>/<class>/<image>"
LabelledFiles = list[tuple[Path, str]]  # files and class names


class ImageParams(Params):
    """Parameters of all image folders."""

    image_size: int = Field(32, ge=1, le=1024, description="Height and width in pixels.")
    channels: Literal[1, 3] = Field(3, description="1 for grey, 3 for colour.")
    class_names: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="All class folders, in label order; default: the training folders, sorted. Published data sets: "
        "the classes to use; default: all.",
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="Fraction of each class to split off for testing, if the test part is missing."
    )
    on_bad_sample: OnBadSample = Field("stop", description="Treatment of broken images.")


class ImageFolder(Dataset):
    """Image folders, decoded into memory; samples are ``(channels, image_size, image_size)`` uint8."""

    name: ClassVar[str] = "image_folder"
    picture_keys = ("image_size", "channels")
    # published data sets
    required_paths: ClassVar[tuple[str, ...]] = ()
    archive_folders: ClassVar[tuple[str, ...]] = ()  # subfolders of data_cache_dir that an archive creates
    known_classes: ClassVar[tuple[str, ...] | None] = None
    moments: ClassVar[Moments | None] = None
    expected_survey: ClassVar[dict[str, str]] = {}  # item to text, for the complete data set
    # fake copies
    fake_classes: ClassVar[tuple[str, ...]] = ("circle", "cross", "square", "star")
    fake_size: ClassVar[tuple[int, int]] = (36, 32)  # height and width
    fake_files: ClassVar[Mapping[str, Callable[[str, int], str]]] = {  # part to path, from class and image number
        "train": lambda name, i: f"train/{name}/{i}.png",
        "test": lambda name, i: f"test/{name}/{i}.png",
    }

    class Params(ImageParams):
        groups: tuple[Annotated[str, Field(pattern=r"^[^./\x00][^/\x00]*$")], ...] | None = Field(
            None,
            min_length=1,
            description="Group folders to read from a tree <group>/train/<class>/* or <group>/<class>/*; default: all.",
        )

    @property
    def measured(self) -> bool:
        return self.moments is None

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        source = f"; get it from {self.source}" if self.source else ""
        if data_dir is None or not os.path.isdir(data_dir):
            problem = "data_args.data_cache_dir is not set" if data_dir is None else f"{data_dir} is not a folder"
            layout = " and ".join(self.required_paths) or "train/<class>/* and test/<class>/* (or val/)"
            raise mistake(f"data set {self.name}", problem, f"a folder with {layout}{source}")
        root = self.root(data_dir)
        if missing := [name for name in self.required_paths if not os.path.exists(root / name)]:
            raise LabelSkewError(f"data set {self.name}: no {', '.join(missing)} in {root}{source}")

    def root(self, data_dir: Path | None) -> Path:
        """Return ``data_dir``, or its subfolder from :attr:`archive_folders` that contains a required path."""
        top = data_dir or Path()
        folders = (top / name for name in ("", *self.archive_folders))
        return next((f for f in folders if any(os.path.exists(f / name) for name in self.required_paths)), top)

    def groups(self, root: Path, parts: Sequence[str] = ("train",)) -> list[Path]:
        """Return the group folders, if any. Raise LabelSkewError if one is missing, or only some folders have parts.

        A group contains one of ``parts``. If no folder contains one, a folder with subfolders is a group or a class:
        ``groups`` or ``class_names`` decides, otherwise :func:`overlap`.
        """
        if self.required_paths:
            return []
        chosen, folders = self.params.groups, folders_among(root.iterdir())
        groups = [folder for folder in folders if any((folder / part).is_dir() for part in parts)]
        below: dict[Path, list[str]] = {}
        if not groups and not any((root / part).is_dir() for part in PARTS):
            below = {folder: names for folder in folders if (names := class_folders(folder))}
        names = [folder.name for folder in groups or below]
        if chosen is not None:
            if missing := [name for name in chosen if name not in names]:
                problem = f"{few(missing)} {'is' if len(missing) == 1 else 'are'} missing in {root}"
                raise mistake("data_args.groups", problem, f"one of {few(names)}" if names else TREE)
            return [folder for folder in groups or below if folder.name in chosen]
        classes = set(self.params.class_names or ())
        if {folder.name for folder in folders} <= classes or any((root / part).is_dir() for part in parts):
            return []
        if groups and (other := [folder.name for folder in folders if folder not in groups]):
            lacks = f"{parts[0]}/ is missing in {few(other)}, but exists in {clean(names[0], 40)}"
            use = "<group>/train/<class>/<image> in every folder, or data_args.groups"
            raise mistake(f"data set {self.name}: {root}", lacks, use)
        return folders if below and len(below) == len(folders) and overlap(below.values(), classes) else groups

    def find(self, data_dir: Path, groups: Sequence[Path]) -> tuple[LabelledFiles, LabelledFiles | None]:
        if not groups and not (data_dir / "train").is_dir():
            part = next((part for part in ("test", "val") if (data_dir / part).is_dir()), "")
            if part and not self._named:
                read = few([folder.name for folder in folders_among(data_dir.iterdir())])
                problem = f"{data_dir} has {part}/ but no train/, so {read} would be read as classes"
                use = f"Use train/<class>/<image> next to {part}/<class>/<image>. Only servers of silos need no train/"
                raise LabelSkewError(f"data set {self.name}: {problem}. {use}")
            return self.listed(data_dir), None
        train: LabelledFiles = []
        test: LabelledFiles = []
        wrong: list[str] = []
        for folder in groups or [data_dir]:
            with gathered(wrong):
                train += self.listed(train_folder(folder))
            with gathered(wrong):
                test += self.find_test(folder) or []
        refuse(wrong)
        return train, test or None

    def find_test(self, data_dir: Path) -> LabelledFiles | None:
        annotations = data_dir / "val" / "val_annotations.txt"
        if annotations.is_file():  # Tiny-ImageNet, whose test/ has no labels
            return list_annotated(annotations)
        for name in ("test", "val"):
            if (data_dir / name).is_dir():
                return self.listed(data_dir / name)
        return None

    def find_tests(self, groups: Sequence[Path]) -> LabelledFiles | None:
        return [sample for group in groups for sample in self.find_test(group) or ()] or None

    def splits_off(self, data_dir: Path | None) -> bool:
        root = self.root(data_dir)
        with readable(f"data set {self.name}: {root}"):
            return self.find_test(root) is None and not self.find_tests(self.groups(root, PARTS))

    def listed(self, folder: Path) -> LabelledFiles:
        """List the images of class folders. Raise LabelSkewError for empty or ambiguous folders."""
        samples = list_images(folder.iterdir(), f"data set {self.name}: {folder}")
        if self._named or (nested := nested_class(folder, samples)) is None:
            return samples
        deeper = few(sorted({path.relative_to(folder / nested).parts[0] for path, name in samples if name == nested}))
        raise LabelSkewError(
            f"data set {self.name}: {folder / nested} contains folders ({deeper}) but no images, so "
            f"{few(sorted({name for _, name in samples}))} could be classes or groups (such as hospitals). List "
            f"classes in data_args.class_names (labelskew new: --classes), or groups in data_args.groups with {TREE}"
        )

    @property
    def _named(self) -> Sequence[str] | None:
        """The classes, if given or known; None if the folders are the classes."""
        return self.params.class_names or self.known_classes

    def _parts(self, data_dir: Path | None) -> tuple[Path, list[Path], LabelledFiles, LabelledFiles | None]:
        self.check(data_dir, download=False)
        root = self.root(data_dir)
        with readable(f"data set {self.name}: {root}"):
            groups = self.groups(root)
            return root, groups, *self.find(root, groups)

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self.load(data_dir, download=download, seed=None)

    def load(self, data_dir: Path | None, *, download: bool, seed: int | None) -> Data:
        """Load all images. Without a test part, split one off from training, unless ``seed`` is None."""
        root, groups, *samples = self._parts(data_dir)
        parts = [self.filter_classes(part) for part in samples if part is not None]
        names = self.names(*parts)
        ((kept, train), *others), fingerprint = self.decode_all(parts, names, root, groups)
        test = others[0][1] if others else picked(train, np.zeros(0, np.int64))
        if seed is not None and groups:
            train, test = self._split_groups(groups, train, test, seed=seed)
        elif seed is not None and not others:
            train, test = (picked(train, rows) for rows in self.split(kept, train.y, seed=seed, where=str(root)))
        data = self._data(train, test, names, groups, fingerprint)
        layout = self.layout(groups, names, tests=bool(others))
        return replace(data, notes={"layout.txt": f"{layout}\n"}) if groups else data

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        self.check(data_dir, download=download)
        root, groups = self.root(data_dir), []
        with readable(f"data set {self.name}: {root}"):
            samples = None
            if not (root / "train").is_dir() and not self.groups(root):
                samples = self.find_test(root)
                groups = [] if samples else self.groups(root, ("test", "val"))
                samples = samples or self.find_tests(groups)
        if samples is None:
            return super().load_test(data_dir, download=download, seed=seed)
        samples = self.filter_classes(samples)
        names = self.names(samples)
        ((_, test),), fingerprint = self.decode_all([samples], names, root, groups)
        return self._data(Arrays(test.x[:0], test.y[:0]), test, names, groups, fingerprint)

    def _data(self, train: Arrays, test: Arrays, names: list[str], groups: Sequence[Path], fingerprint: str) -> Data:
        mean, std = self.moments or moments((train if len(train.y) else test).x)
        of_groups = [clean(folder.name, 40) for folder in groups]
        return Data(train, test, names, mean=mean, std=std, fingerprint=fingerprint, group_names=of_groups)

    def layout(self, groups: Sequence[Path], classes: Sequence[str], *, tests: bool) -> str:
        of = f"{counted(len(groups), 'group')} ({few([folder.name for folder in groups])}), " if groups else ""
        split = f"{100 * self.params.test_fraction:g} % of each {'group' if groups else 'class'}'s pictures"
        part = "test/ or val/" + (f", or {split} if it has neither" if groups else "") if tests else split
        return f"{of}{counted(len(classes), 'class', 'classes')} ({few(classes)}); test part: {part}"

    def _split_groups(self, groups: Sequence[Path], train: Arrays, test: Arrays, *, seed: int) -> tuple[Arrays, Arrays]:
        fraction, of_train = self.params.test_fraction, np.asarray(train.groups)
        if empty := [str(train_folder(folder)) for g, folder in enumerate(groups) if g not in np.unique(of_train)]:
            use = "valid images, or list the other folders in data_args.groups"
            raise mistake(f"data set {self.name}", f"no valid image in {', '.join(empty)}", use)
        if len(test.y):
            untested = np.flatnonzero(~np.isin(of_train, np.asarray(test.groups)))
            chosen = untested[drawn(train.y[untested], of_train[untested], test_fraction=fraction, seed=seed)]
        else:
            where = f"data set {self.name}: {groups[0].parent}"
            _, chosen = stratified(train.y, of_train, test_fraction=fraction, seed=seed, where=where)
        rest = np.setdiff1d(np.arange(len(train.y)), chosen)
        return picked(train, rest), joined(test, picked(train, chosen))

    def split(self, samples: LabelledFiles, labels: Indices, *, seed: int, where: str) -> tuple[Indices, Indices]:
        """Indices of training and test samples, from ``labels`` ``(N,)``."""
        return stratified(labels, test_fraction=self.params.test_fraction, seed=seed, where=where)

    def filter_classes(self, samples: LabelledFiles) -> LabelledFiles:
        """Drop samples of known classes that ``class_names`` omits; :meth:`names` reports unknown classes."""
        known, chosen = self.known_classes, self.params.class_names
        if known is None or chosen is None:
            return samples
        if unknown := [name for name in chosen if name not in known]:
            problem = f"{unknown[0]!r} is not a class of data set {self.name}"
            raise LabelSkewError(f"data_args.class_names: {problem}; allowed: {', '.join(known)}")
        return [sample for sample in samples if sample[1] in chosen or sample[1] not in known]

    def names(self, *parts: LabelledFiles) -> list[str]:
        """List all classes in label order, of the training part, which is first. Raise LabelSkewError for others."""
        given = self._named
        names = sorted({name for _, name in parts[0]}) if given is None else list(given)
        known = set(names)
        unknown = {name: path for path, name in reversed([*chain(*parts)]) if name not in known}
        kind, of = "class", f"classes of data set {self.name}; remove it"
        if given is None:
            kind, of = "test class", "classes in training; add a folder to training, or remove it from test"
        elif self.params.class_names:
            of = "classes in data_args.class_names; add it"
        pairs = sorted(unknown.items())
        refuse([f"{path}: {kind} {name!r} is not one of the {len(names)} {of}" for name, path in pairs])
        return names

    def decode_all(
        self, parts: Sequence[LabelledFiles], names: list[str], root: Path, groups: Sequence[Path]
    ) -> tuple[list[tuple[LabelledFiles, Arrays]], str]:
        """Return each part's valid samples and arrays, and a fingerprint."""
        number, size, channels = sum(map(len, parts)), self.params.image_size, self.params.channels
        content = f"{number} images of {size} pixels"
        fits(number * channels * size**2, f"data set {self.name}", content, "a smaller data_args.image_size")
        group = {folder.name: g for g, folder in enumerate(groups)}
        bad: list[str] = []
        decoded: list[tuple[LabelledFiles, Arrays]] = []
        files: list[Arrays] = []
        for samples in parts:
            x = np.empty((len(samples), channels, size, size), np.uint8)
            digests = np.zeros((len(samples), 16), np.uint8)

            def read(i: int, samples: LabelledFiles = samples, x: Any = x, digests: Any = digests) -> None:
                x[i] = decode(samples[i][0], size=size, channels=channels)
                content = hashlib.blake2b(digest_size=16)
                for piece in read_pieces(samples[i][0]):
                    content.update(piece)
                digests[i] = np.frombuffer(content.digest(), np.uint8)

            lines = dict(faults(read, range(len(samples)), f"reading {len(samples)} pictures of {root}"))
            bad += lines.values()
            kept = [i for i in range(len(samples)) if i not in lines]
            valid = [samples[i] for i in kept]
            y = np.array([names.index(name) for _, name in valid], np.int64)
            of = np.array([group[path.parts[len(root.parts)]] for path, _ in valid], np.int64) if groups else None
            decoded.append((valid, Arrays(x[kept] if lines else x, y, of)))
            files.append(Arrays(digests[kept], y, of))
        settle(bad, self.params.on_bad_sample)
        if any(samples and not kept for samples, (kept, _) in zip(parts, decoded, strict=True)):
            raise LabelSkewError(f"data set {self.name}: {root} has a part without any valid image")
        return decoded, digest(files, names)

    def picture(self, file: Path) -> NDArray[np.uint8]:
        return decode(file, size=self.params.image_size, channels=self.params.channels)

    def broken(self, data_dir: Path | None) -> list[str]:
        root, _, *parts = self._parts(data_dir)
        files = [path for part in parts for path, _ in self.filter_classes(part or [])]
        task = f"opening {len(files)} pictures of {root}"
        return [line for _, line in faults(lambda file: opened(file, draft=1), files, task)]

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        try:
            _, groups, train, test = self._parts(data_dir)
        except LabelSkewError as error:
            return [("layout", "missing", "; ".join(str(error).splitlines()))]
        parts = {"images": train} if test is None else {"training images": train, "test images": test}
        facts = {item: str(sum(os.path.isfile(path) for path, _ in part)) for item, part in parts.items()}
        names = sorted({name for _, name in train})
        facts["classes"] = str(len(names))
        if not self.source:
            facts["layout"] = self.layout(groups, names, tests=test is not None)
        rows = [(item, text, self.expected_survey.get(item, "any")) for item, text in facts.items()]
        return rows + [(f"class {name}", "missing", "images") for name in self.known_classes or () if name not in names]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        groups = getattr(self.params, "groups", None) or ("",)
        least = 20 * len(groups) if groups[0] else 0
        if samples is not None and samples < least:
            raise mistake(f"--samples {samples}", f"too few for {len(groups)} groups", f"at least {least}")
        names, number = self.known_classes or self.fake_classes, samples or (least if least > 300 else None)
        shape = (3, *self.fake_size)
        made = fakes.parts(number, classes=len(names), shape=shape, seed=seed, names=tuple(self.fake_files))
        written: list[tuple[Path, str]] = []
        for part, arrays in made.items():
            for x, label in zip(arrays.x, arrays.y.tolist(), strict=True):
                i = len(written)
                group = groups[(label if i % 4 else i // 4) % len(groups)]
                written.append((out / group / self.fake_files[part](names[label], i), names[label]))
                fakes.write_picture(written[-1][0], x)
        self.fake_table(out, written)

    def fake_table(self, out: Path, written: LabelledFiles) -> None:
        """Write the table of classes, if the data set has one."""


def images_in(folder: Path) -> list[Path]:
    """List all images below ``folder``, sorted."""
    files = (Path(root, name) for root, _, names in os.walk(folder) for name in names if name[0] != ".")
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES)


def folders_among(paths: Iterable[Path]) -> list[Path]:
    """List the folders in ``paths`` by name, without hidden ones."""
    return sorted((path for path in paths if path.is_dir() and path.name[0] != "."), key=lambda path: path.name)


def train_folder(folder: Path) -> Path:
    """``train/`` if the folder has one, else the folder itself."""
    return folder / "train" if (folder / "train").is_dir() else folder


def class_folders(folder: Path) -> list[str]:
    """List the subfolders' names; empty if there are images or a part such as ``train/``."""
    paths = [path for path in folder.iterdir() if path.name[0] != "."]
    if any(path.suffix.lower() in SUFFIXES for path in paths):  # before is_dir(), a system call per image
        return []
    names = [path.name for path in folders_among(paths)]
    return [] if {*PARTS} & {*names} else names


def overlap(below: Iterable[Sequence[str]], known: Collection[str]) -> bool:
    """Whether names ``below`` are classes: one is ``known``, or each folder shares one with another folder.

    >>> overlap([["a", "b"], ["b"]], ()), overlap([["a", "b"], ["c", "d"]], ()), overlap([["a"], ["b"]], ["a"])
    (True, False, True)
    """
    holders = Counter(name for names in below for name in names)
    shared = all(any(holders[name] > 1 for name in names) for names in below)
    return not holders.keys().isdisjoint(known) or (len(holders) > 1 and shared)


def list_images(folders: Iterable[Path], where: str) -> LabelledFiles:
    """List all images by class. Raise LabelSkewError for missing or empty class folders."""
    by_class = [(folder.name, images_in(folder)) for folder in folders_among(folders)]
    if empty := [name for name, images in by_class if not images]:
        more = f", and {len(empty) - MAX_SHOWN} more" if len(empty) > MAX_SHOWN else ""
        shown = few(empty[:MAX_SHOWN], MAX_SHOWN)
        endings = ", ".join(sorted(SUFFIXES))
        raise LabelSkewError(f"{where}: no images in {shown}{more}; add some ({endings}), or remove the empty folders")
    if not by_class:
        raise LabelSkewError(f"{where} has no class folders; use <class>/<image>")
    return [(path, name) for name, images in by_class for path in images]


def list_annotated(file: Path) -> LabelledFiles:
    """List Tiny-ImageNet's validation images from lines ``<name> TAB <class> TAB ...``."""
    rows = [line.split("\t") for line in read_text(file).splitlines() if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise mistake(file, "is not a list of images and their classes", "lines of image, tab, class")
    return [(file.parent / "images" / row[0], row[1]) for row in rows]


def nested_class(folder: Path, samples: LabelledFiles) -> str | None:
    """Find the first class with images only in subfolders other than ``images/``."""
    below: dict[str, set[str]] = {}
    for path, name in samples:
        inner = os.path.dirname(path)[len(os.path.join(folder, name)) + 1 :]
        below.setdefault(name, set()).add(inner.partition(os.sep)[0])
    return next((name for name, inner in below.items() if "" not in inner and inner != {"images"}), None)
