"""Images in folders named after their classes: ``train/<class>/*`` and ``test/<class>/*`` or ``val/<class>/*``.

CINIC-10, ImageNet subsets, HyperKvasir and the like. Without ``train/``, the folder itself holds the classes; without a
test part, one is split off. Classes are the folders in training, unless ``class_names`` lists them: a silo's own data
often lack some. Trees ``<group>/train/<class>/*``, with each group's ``test/`` or ``val/`` where it has one, and
``<group>/<class>/*`` are read as groups, such as hospitals; :meth:`ImageFolder.groups` has the rule. A server that only
tests needs only ``test/`` or ``val/``, its own or each group's. Tiny-ImageNet's ``train/<class>/images/*`` and
``val/val_annotations.txt`` are read too.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import fits, gathered, readable, refuse
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.pictures import OnBadSample, decode, faults, opened, settle
from fl_labelskew_plugins.data.split import drawn, joined, picked, stratified
from fl_labelskew_plugins.data.stats import moments
from fl_labelskew_plugins.data.trees import (
    PARTS,
    Samples,
    class_folders,
    folders_among,
    held_by,
    list_annotated,
    list_images,
    nested_class,
    overlap,
    train_folder,
)
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.params import Params

TREE = "<group>/train/<class>/<image> or <group>/<class>/<image>"


class ImageParams(Params):
    """Parameters of all data sets of image folders."""

    image_size: int = Field(32, ge=1, le=1024, description="Pixels of each side.")
    channels: Literal[1, 3] = Field(3, description="1 for grey, 3 for colour.")
    class_names: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Folders of all classes, in order; default: those of training, sorted. Of a data set whose "
        "classes are known: those that are used; default: all.",
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="Share of each class in test where there is none.")
    on_bad_sample: OnBadSample = Field("stop", description="What broken pictures lead to.")


class ImageFolder(Dataset):
    """Image folders, decoded into memory once; samples are ``(channels, image_size, image_size)`` uint8."""

    name: ClassVar[str] = "image_folder"
    known_classes: ClassVar[tuple[str, ...] | None] = None
    picture_keys = ("image_size", "channels")
    moments: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = None
    real: ClassVar[dict[str, str]] = {}  # what a survey of the real data set finds
    fake_classes: ClassVar[tuple[str, ...]] = ("circle", "cross", "square", "star")
    fake_size: ClassVar[tuple[int, int]] = (36, 32)  # height and width
    fake_parts: ClassVar[tuple[str, ...]] = ("train", "test")

    class Params(ImageParams):
        """Parameters of image_folder."""

        groups: tuple[Annotated[str, Field(pattern=r"^[^./\x00][^/\x00]*$")], ...] | None = Field(
            None,
            min_length=1,
            description="Folders of the groups that are read of a tree <group>/train/<class>/* or <group>/<class>/*; "
            "default: all.",
        )

    @property
    def measured(self) -> bool:
        """Where nobody has written down the real data set's."""
        return self.moments is None

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if there is no such folder; it cannot be downloaded."""
        self._check(data_dir, "train/<class>/* and test/<class>/* (or val/)")

    def _check(self, data_dir: Path | None, layout: str) -> Path:
        if data_dir is None or not os.path.isdir(data_dir):
            what = "data_args.data_cache_dir is not set" if data_dir is None else f"{data_dir} is not a folder"
            source = f"; get it from {self.source}" if self.source else ""
            raise mistake(f"data set {self.name}", what, f"a folder with {layout}{source}")
        return data_dir

    def root(self, data_dir: Path | None) -> Path:
        """The folder that has the parts."""
        return Path() if data_dir is None else data_dir

    def groups(self, root: Path, parts: Sequence[str] = ("train",)) -> list[Path]:
        """The groups' folders, by name; empty if the tree has no groups.

        A group contains one of ``parts``, or, if no folder does, only folders of classes. In the second case the upper
        folders could also be classes: ``groups`` or ``class_names`` decide; without them they are groups if every one
        shares a class with another one.

        Raises:
            LabelSkewError: some folders have such a part and others have not, or a group that is asked for is missing.
        """
        chosen, folders = self.params.groups, folders_among(root.iterdir())
        groups = [folder for folder in folders if any((folder / part).is_dir() for part in parts)]
        below: dict[Path, list[str]] = {}
        if not groups and not any((root / part).is_dir() for part in PARTS):
            below = {folder: names for folder in folders if (names := class_folders(folder))}
        names = [folder.name for folder in groups or below]
        if chosen is not None:
            if absent := [name for name in chosen if name not in names]:
                there = f"one of {few(names)}" if names else TREE
                raise mistake(
                    "data_args.groups", f"{few(absent)} {'is' if len(absent) == 1 else 'are'} missing in {root}", there
                )
            return [folder for folder in groups or below if folder.name in chosen]
        classes = set(self.params.class_names or ())
        if {folder.name for folder in folders} <= classes or any((root / part).is_dir() for part in parts):
            return []
        if groups and (other := [folder.name for folder in folders if folder not in groups]):
            lacks = f"no {parts[0]}/ in {few(other)}, but in {clean(names[0], 40)}"
            use = "<group>/train/<class>/<image> in every folder, or data_args.groups"
            raise mistake(f"data set {self.name}: {root}", lacks, use)
        return folders if below and len(below) == len(folders) and overlap(below.values(), classes) else groups

    def find(self, data_dir: Path, groups: Sequence[Path] | None = None) -> tuple[Samples, Samples | None]:
        """The images of the training part and of the test part, or None where that is to be split off.

        Both are those of all groups together, where there are groups; ``groups``: as :meth:`groups` returns them.
        """
        groups = self.groups(data_dir) if groups is None else groups
        if not groups and not (data_dir / "train").is_dir():
            self._refuse_test_alone(data_dir)
            return self.listed(data_dir), None
        train: Samples = []
        test: Samples = []
        wrong: list[str] = []
        for folder in groups or [data_dir]:
            with gathered(wrong):
                train += self.listed(train_folder(folder))
            with gathered(wrong):
                test += self.find_test(folder) or []
        refuse(wrong)
        return train, test or None

    def find_test(self, data_dir: Path) -> Samples | None:
        """The images of ``test/`` or ``val/``, or None where there is neither."""
        annotations = data_dir / "val" / "val_annotations.txt"
        if annotations.is_file():  # Tiny-ImageNet, whose test/ has no labels
            return list_annotated(annotations)
        for name in ("test", "val"):
            if (data_dir / name).is_dir():
                return self.listed(data_dir / name)
        return None

    def find_tests(self, groups: Sequence[Path]) -> Samples | None:
        """The images of the groups' test parts, or None where no group has one."""
        return [sample for group in groups for sample in self.find_test(group) or ()] or None

    def splits_off(self, data_dir: Path | None) -> bool:
        """Whether there is neither ``test/`` nor ``val/``, nor those of a group."""
        root = self.root(data_dir)
        with readable(f"data set {self.name}: {root}"):
            return self.find_test(root) is None and not self.find_tests(self.groups(root, ("train", "test", "val")))

    def listed(self, folder: Path) -> Samples:
        """The images of a folder of classes.

        Raises:
            LabelSkewError: there are none, or its folders hold further folders, and nobody says that they are classes.
        """
        samples = list_images(folder.iterdir(), f"data set {self.name}: {folder}")
        if self._named or (nested := nested_class(folder, samples)) is None:
            return samples
        deeper = few(sorted({path.relative_to(folder / nested).parts[0] for path, name in samples if name == nested}))
        raise LabelSkewError(
            f"data set {self.name}: {folder / nested} has no image but the folders {deeper}, so "
            f"{few(sorted({name for _, name in samples}))} may be classes or groups such as hospitals. For classes, "
            "list them in data_args.class_names (labelskew new: --classes); for groups, list them in data_args.groups "
            f"and use {TREE}"
        )

    @property
    def _named(self) -> bool:
        """Whether somebody says what the classes are; else they are the folders that are there."""
        return self.params.class_names is not None or self.known_classes is not None

    def _refuse_test_alone(self, data_dir: Path) -> None:
        """Raise LabelSkewError where there is a test part and no training part, which would make it a class."""
        if self._named:
            return
        for part in ("test", "val"):
            if (data_dir / part).is_dir():
                read = few([folder.name for folder in folders_among(data_dir.iterdir())])
                raise LabelSkewError(
                    f"data set {self.name}: {data_dir} has {part}/ but no train/; read like this, the classes would be "
                    f"{read}. Use train/<class>/<image> beside {part}/<class>/<image>; a server alone needs no train/"
                )

    def _parts(self, data_dir: Path | None) -> tuple[Path, list[Path], Samples, Samples | None]:
        """The folder that has the parts, its groups, and what :meth:`find` finds there."""
        self.check(data_dir, download=False)
        root = self.root(data_dir)
        with readable(f"data set {self.name}: {root}"):
            groups = self.groups(root)
            return root, groups, *self.find(root, groups)

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Decode all images; of groups without a test part, it is split off as if each were alone."""
        return self._read(data_dir, seed)

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Decode all images; without a test part, all are in the training part."""
        return self._read(data_dir, None)

    def _read(self, data_dir: Path | None, seed: int | None) -> Data:
        root, groups, train_samples, test_samples = self._parts(data_dir)
        train_samples, test_samples = self.used(train_samples), test_samples and self.used(test_samples)
        names = self.names(train_samples, test_samples or [])
        parts = [train_samples] if test_samples is None else [train_samples, test_samples]
        ((kept, train), *others), fingerprint = self.decode_all(parts, names, root, groups)
        if seed is None:
            test = others[0][1] if others else picked(train, np.zeros(0, np.int64))
        elif groups:
            train, test = self._split_groups(groups, train, others[0][1] if others else None, seed=seed)
        elif others:
            test = others[0][1]
        else:
            rows = self.split(kept, train.y, seed=seed, where=str(root))
            train, test = (picked(train, r) for r in rows)
        data = self._data(train, test, names, groups, fingerprint)
        layout = self.layout(groups, names, tests=test_samples is not None)
        return replace(data, notes={"layout.txt": f"{layout}\n"}) if groups else data

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Decode the test part alone, or all groups' test parts; normalised by their own moments or by known ones.

        Where there is none, the split-off part.
        """
        self.check_test(data_dir, download=download)
        root, groups = self.root(data_dir), []
        with readable(f"data set {self.name}: {root}"):
            known = self.moments is not None and self.known_classes is not None  # all that is taken from training
            trains = (root / "train").is_dir() or bool(self.groups(root))
            samples = None if trains and not known else self.find_test(root)
            if samples is None and not trains:
                groups = self.groups(root, ("test", "val"))
                samples = self.find_tests(groups)
        if samples is None:
            return super().load_test(data_dir, download=download, seed=seed)
        samples = self.used(samples)
        names = self.names(samples, [])
        ((_, test),), fingerprint = self.decode_all([samples], names, root, groups)
        return self._data(Arrays(test.x[:0], test.y[:0]), test, names, groups, fingerprint)

    def _data(self, train: Arrays, test: Arrays, names: list[str], groups: Sequence[Path], fingerprint: str) -> Data:
        mean, std = self.moments or moments((train if len(train.y) else test).x)
        of_groups = [clean(folder.name, 40) for folder in groups]
        return Data(train, test, names, mean=mean, std=std, fingerprint=fingerprint, group_names=of_groups)

    def layout(self, groups: Sequence[Path], classes: Sequence[str], *, tests: bool) -> str:
        """How the folders were read, in words; ``tests``: whether there is a test part."""
        of = f"{counted(len(groups), 'group')} ({few([folder.name for folder in groups])}), " if groups else ""
        part = self.test_part(groups, tests=tests)
        return f"{of}{counted(len(classes), 'class', 'classes')} ({few(classes)}); test part: {part}"

    def test_part(self, groups: Sequence[Path], *, tests: bool) -> str:
        """Where the test samples are from, in words."""
        split = f"{100 * self.params.test_fraction:g} % of each {'group' if groups else 'class'}'s pictures"
        return "test/ or val/" + (f", or {split} if it has neither" if groups else "") if tests else split

    def _split_groups(
        self, groups: Sequence[Path], train: Arrays, test: Arrays | None, *, seed: int
    ) -> tuple[Arrays, Arrays]:
        """The parts; of groups that have no test sample, some of their training samples go there.

        Raises:
            LabelSkewError: a group has no training sample, or no group has a test sample.
        """
        fraction, of_train = self.params.test_fraction, np.asarray(train.groups)
        if empty := [str(train_folder(folder)) for g, folder in enumerate(groups) if g not in np.unique(of_train)]:
            use = "sound ones, or list the other folders in data_args.groups"
            raise mistake(f"data set {self.name}", f"no sound image in {', '.join(empty)}", use)
        if test is None:
            where = f"data set {self.name}: {groups[0].parent}"
            rest, chosen = stratified(train.y, of_train, test_fraction=fraction, seed=seed, where=where)
            return picked(train, rest), picked(train, chosen)
        alone = np.flatnonzero(~np.isin(of_train, np.asarray(test.groups)))
        chosen = alone[drawn(train.y[alone], of_train[alone], test_fraction=fraction, seed=seed)]
        if not len(chosen):
            return train, test
        rest = np.setdiff1d(np.arange(len(train.y)), chosen)
        return picked(train, rest), joined(test, picked(train, chosen))

    def split(
        self, samples: Samples, labels: NDArray[np.int64], *, seed: int, where: str
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices of training and test samples by their labels ``(N,)``, where there is no test part."""
        return stratified(labels, test_fraction=self.params.test_fraction, seed=seed, where=where)

    def used(self, samples: Samples) -> Samples:
        """The samples that are read: all but those of known classes that ``class_names`` leaves out.

        Raises:
            LabelSkewError: ``class_names`` has a class that the data set has not.
        """
        known, chosen = self.known_classes, self.params.class_names
        if known is None or chosen is None:
            return samples
        if unknown := [name for name in chosen if name not in known]:
            raise LabelSkewError(
                f"data_args.class_names: {unknown[0]!r} is no class of data set {self.name}; "
                f"allowed: {', '.join(known)}"
            )
        return [sample for sample in samples if sample[1] in chosen or sample[1] not in known]

    def names(self, samples: Samples, others: Samples) -> list[str]:
        """All classes in the order of their numbers: those that are given or known, or those of ``samples``.

        Raises:
            LabelSkewError: an image is of none of them.
        """
        given = self.params.class_names or self.known_classes
        names = sorted({name for _, name in samples}) if given is None else list(given)
        known = set(names)
        unknown = {name: path for path, name in reversed([*samples, *others]) if name not in known}
        what, of = "class", f"of data set {self.name}; remove it"
        if given is None:
            what, of = "test class", "classes in training; add a folder to training, or remove it from test"
        elif self.params.class_names:
            of = "of data_args.class_names; add it"
        pairs = sorted(unknown.items())
        refuse([f"{path}: {what} {name!r} is not one of the {len(names)} {of}" for name, path in pairs])
        return names

    def decode_all(
        self, parts: Sequence[Samples], names: list[str], root: Path, groups: Sequence[Path]
    ) -> tuple[list[tuple[Samples, Arrays]], str]:
        """Of each part the samples that are sound, and their images, labels and groups; and a fingerprint of the files.

        Raises:
            MistakesError: there are broken images, in whichever part, and ``on_bad_sample`` is ``stop``.
            LabelSkewError: none of a part's images is sound, or they do not fit into memory.
        """
        images, size = sum(map(len, parts)), self.params.image_size
        what = f"{images} images of {size} pixels"
        fits(images * self.params.channels * size**2, f"data set {self.name}", what, "a smaller data_args.image_size")
        number = {name: c for c, name in enumerate(names)}
        group = {folder.name: g for g, folder in enumerate(groups)}
        bad: list[str] = []
        decoded: list[tuple[Samples, Arrays]] = []
        files: list[Arrays] = []
        for samples in parts:
            x, contents, lines = self._decoded(samples, f"reading {len(samples)} pictures of {root}")
            bad += lines.values()
            kept = [i for i in range(len(samples)) if i not in lines]
            y = np.array([number[samples[i][1]] for i in kept], np.int64)
            of = [group[samples[i][0].parts[len(root.parts)]] for i in kept] if groups else None
            numbers = None if of is None else np.array(of, np.int64)
            decoded.append(([samples[i] for i in kept], Arrays(x[kept] if lines else x, y, numbers)))
            files.append(Arrays(contents[kept], y, numbers))
        settle(bad, self.params.on_bad_sample)
        if any(samples and not kept for samples, (kept, _) in zip(parts, decoded, strict=True)):
            raise LabelSkewError(f"data set {self.name}: {root} has a part without any sound image")
        return decoded, digest(files, names)

    def _decoded(self, samples: Samples, what: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], dict[int, str]]:
        """Images ``(N, C, S, S)``, a digest of each file ``(N, 16)``, and for each broken one its number and a line."""
        size, channels = self.params.image_size, self.params.channels
        x = np.empty((len(samples), channels, size, size), np.uint8)
        contents = np.zeros((len(samples), 16), np.uint8)

        def one(i: int) -> None:
            path, _ = samples[i]
            x[i] = decode(path, size=size, channels=channels)
            contents[i] = np.frombuffer(hashlib.blake2b(path.read_bytes(), digest_size=16).digest(), np.uint8)

        return x, contents, dict(faults(one, range(len(samples)), what))

    def picture(self, file: Path) -> NDArray[np.uint8]:
        """A picture as :func:`.pictures.decode` makes it."""
        return decode(file, size=self.params.image_size, channels=self.params.channels)

    def broken(self, data_dir: Path | None) -> list[str]:
        """A line for each broken image of all parts that are read."""
        root, _, train, test = self._parts(data_dir)
        files = [path for path, _ in [*self.used(train), *self.used(test or [])]]
        what = f"opening {len(files)} pictures of {root}"
        return [line for _, line in faults(lambda file: opened(file, draft=1), files, what)]  # quick for JPEGs

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """Images of each part, and classes; no image is opened."""
        try:
            _, groups, train, test = self._parts(data_dir)
        except LabelSkewError as error:
            # no row of a small copy, whose numbers would hide why
            return [("layout", "missing", "; ".join(str(error).splitlines()))]
        parts = {"images": train} if test is None else {"training images": train, "test images": test}
        facts = {what: str(sum(os.path.isfile(path) for path, _ in part)) for what, part in parts.items()}
        names = sorted({name for _, name in train})
        facts["classes"] = str(len(names))
        if not self.source:
            facts |= {"groups": str(len(groups) or "none"), "test part": self.test_part(groups, tests=test is not None)}
        if self.known_classes is None:
            facts["names"] = few(names)
        for folder in groups:
            facts[f"group {clean(folder.name, 40)}"] = held_by(folder, train, test or [])
        rows = [(what, text, self.real.get(what, "any")) for what, text in facts.items()]
        return rows + [(f"class {name}", "missing", "images") for name in self.known_classes or () if name not in names]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write images of every class; 300 by default, or 4 a class, or 20 a group."""
        from PIL import Image

        least = 20 * len(getattr(self.params, "groups", None) or ())
        if samples is not None and samples < least:
            raise mistake(f"--samples {samples}", f"too few for {least // 20} groups", f"at least {least}")
        fakes.fresh_folder(out)
        names = self.known_classes or self.fake_classes
        shape, number = (3, *self.fake_size), samples or (least if least > 300 else None)
        made = fakes.parts(number, classes=len(names), shape=shape, seed=seed, names=self.fake_parts)
        written: list[tuple[str, str, str]] = []
        for part, arrays in made.items():
            for x, label in zip(arrays.x, arrays.y.tolist(), strict=True):
                path = out / self.fake_path(part, names[label], len(written))
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(x.transpose(1, 2, 0)).save(path)
                written.append((part, path.name, names[label]))
        self.fake_notes(out, written)

    def fake_path(self, part: str, name: str, i: int) -> str:
        """Where image ``i`` of a made-up data set goes; ``part`` is one of ``fake_parts``.

        Three of four images of a class go to one group, where there are groups.
        """
        groups = self.params.groups or ("",)
        group = groups[(self.fake_classes.index(name) if i % 4 else i // 4) % len(groups)]
        return str(Path(group, part, name, f"{i}.png"))

    def fake_notes(self, out: Path, written: Sequence[tuple[str, str, str]]) -> None:
        """Files beside the images of a made-up data set: ``written`` has each one's part, file name and class."""
