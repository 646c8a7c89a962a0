"""ISIC 2019 with six centres, in the files that FLamby makes: 18,597 + 4,650 pictures of skin lesions in 8 classes.

Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", 2022; pictures of Tschandl et al. 2018 (HAM10000), Codella et al. 2017 and Hernández-Pérez et al. 2024
(BCN20000), CC-BY-NC 4.0. They stay on disk and are decoded while training goes on.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, Images, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data import fakes, isic2019_fake, lesions, pictures
from fl_labelskew_plugins.data import isic2019_tables as isic
from fl_labelskew_plugins.data.files import readable
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.split import stratified
from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.params import Params

CHECKED = ".labelskew-checked.json"


class ISIC2019(Dataset):
    """ISIC 2019 by centre; samples are ``(3, crop, crop)`` uint8, decoded when needed; groups are the six centres."""

    source: ClassVar[str] = (
        "the scripts of https://github.com/owkin/FLamby (flamby/datasets/fed_isic2019) or "
        "https://challenge.isic-archive.com/data/#2019, 9 GB, CC-BY-NC; docs/isic2019.md goes through it"
    )
    picture_keys = ("crop",)

    class Params(Params):
        """Parameters of isic2019."""

        crop: int = Field(200, ge=16, le=224, description="Pixels of each side that the network gets.")
        tree: Literal["auto", "prepared", "raw"] = Field(
            "auto", description="Which pictures: prepared ones, raw ones, or raw ones where there are any."
        )
        centres: tuple[Annotated[int, Field(ge=0, lt=len(isic.CENTRES))], ...] | None = Field(
            None, min_length=1, description="Centres to read, 0 to 5; default: all. A silo names its own."
        )
        split_file: str | None = Field(None, description=f"FLamby's split; default: {isic.SPLIT} in the data's folder.")
        test_fraction: float = Field(0.2, gt=0, lt=1, description="Share of test where there is no split file.")
        on_bad_sample: pictures.OnBadSample = Field(
            "stop", description="What broken pictures, and rows or pictures without the other, lead to."
        )

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError where the folder of pictures, or the files that say what they show, are missing."""
        if download:
            raise LabelSkewError(f"data set isic2019: download: true is not offered; get it from {self.source}")
        if data_dir is None:
            raise LabelSkewError(f"data set isic2019: data_args.data_cache_dir is not set; get it from {self.source}")
        missing = [] if self._folders(data_dir) != (None, None) else [f"{isic.PREPARED}/ or {isic.RAW}/"]
        if self._split_file(data_dir) is None:
            missing += [name for name in (isic.TRUTH, isic.META) if not os.path.isfile(data_dir / name)]
        if missing:
            raise LabelSkewError(f"data set isic2019: no {', '.join(missing)} in {data_dir}; get it from {self.source}")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read the tables, prepare and check the pictures; ``seed`` draws the split where FLamby's is not there."""
        return self._load(data_dir, seed, download=download, folds=("train", "test"))

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """The test part alone; pictures of the training part need not be there."""
        return self._load(data_dir, seed, download=download, folds=("test",))

    def splits_off(self, data_dir: Path | None) -> bool:
        """Whether there is no split of FLamby's."""
        return data_dir is None or self._split_file(data_dir) is None

    def picture(self, file: Path) -> NDArray[np.uint8]:
        """The centre of a picture, which is prepared first where its shorter side is not that of prepared ones."""
        return lesions.sample(file, self.params.crop)

    def survey(self, data_dir: Path | None) -> fakes.Rows:
        """Files, pictures, and samples of each centre beside FLamby's table."""
        root = Path() if data_dir is None else data_dir
        with _readable(root):
            return self._survey(root)

    def _survey(self, root: Path) -> fakes.Rows:
        split = self._split_file(root)
        tables = [(isic.SPLIT, split), (isic.TRUTH, root / isic.TRUTH), (isic.META, root / isic.META)]
        rows = [
            (name, "found" if file is not None and os.path.isfile(file) else "missing", "found")
            for name, file in tables
            if file is not None
        ]
        raw, prepared = self._folders(root)
        folder = prepared or raw
        files = set() if folder is None else _names(folder)
        complete = split is not None or all(os.path.isfile(root / name) for name in (isic.TRUTH, isic.META))
        named: set[str] = set()
        listed = list(self._rows(root, [], named)) if complete else []
        rows += [
            ("pictures", str(len(files)) if files else "missing", str(np.sum([*isic.TABLE.values()]))),
            ("rows without a picture", str(sum(row.image not in files for row in listed)), "0"),
            ("pictures without a row", str(len(files - named)), "0"),
            ("rows of no known centre or class", str(len(named) - len(listed)), "0"),
        ]
        rows.append(("samples of each class", " ".join(isic.CLASSES), " ".join(isic.CLASSES)))
        for fold in ("train", "test") if split else ("",):
            for centre, name in enumerate(isic.CENTRES):
                targets = [row.target for row in listed if row.centre == centre and row.fold == fold]
                parts = [isic.TABLE[part][centre] for part in ([fold] if fold else isic.TABLE)]
                expected = [sum(counts) for counts in zip(*parts, strict=True)]
                actual = _by_class(np.bincount(targets, minlength=len(isic.CLASSES)).tolist()) if targets else "missing"
                rows.append((f"centre {centre} {name}, {fold or 'both parts'}", actual, _by_class(expected)))
        return rows

    def broken(self, data_dir: Path | None) -> list[str]:
        """A line for each broken picture of those that the tables name, raw and prepared."""
        self.check(data_dir, download=False)
        root = Path() if data_dir is None else data_dir
        with _readable(root):
            named = {row.image for row in self._rows(root, [], set()) if self._chosen(row)}
            folders = [folder for folder in self._folders(root) if folder is not None]
            return [line for folder in folders for _, line in _broken(folder, sorted(named & _names(folder)))]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write a small tree with JPEGs of varied aspect, classes by centre in the table's proportions."""
        isic2019_fake.write(fakes.fresh_folder(out), samples or 240, seed, raw=self.params.tree == "raw")

    # -- tables

    def _split_file(self, root: Path) -> Path | None:
        given = self.params.split_file
        file = root / isic.SPLIT if given is None else Path(given).expanduser()
        if given is not None and not os.path.isfile(file):
            raise mistake("data_args.split_file", f"{file} is not there", f"FLamby's {isic.SPLIT}, or null")
        return file if os.path.isfile(file) else None

    def _rows(self, root: Path, bad: list[str], seen: set[str]) -> Iterator[isic.Row]:
        """All usable rows; of the others, a line for each kind goes to ``bad``; ``seen`` gathers the names of all."""
        split = self._split_file(root)
        unknown: list[str] = []
        unclear: list[str] = []
        where = split or root / isic.TRUTH
        meta = () if split else _read(root / isic.META, ("image", "dataset"))
        centres = {line["image"]: line["dataset"] for line in meta}
        lacking: list[str] = []
        for line in _read(where, isic.SPLIT_COLUMNS if split else isic.TRUTH_COLUMNS):
            image = line["image"]
            if image in seen:
                raise LabelSkewError(f"{where}: image {image} has two rows; keep one of them")
            seen.add(image)
            target = _target(line)
            if not split and image not in centres:
                lacking.append(image)
            elif (centre := _centre(line["center"] if split else centres[image])) is None:
                unknown.append(image)
            elif target is None or (split and line["fold"] not in isic.TABLE):
                unclear.append(image)
            else:
                yield isic.Row(image, target, centre, line["fold"] if split else "")
        orphans = sorted(centres.keys() - seen)
        for images, what in (
            (unknown, f"{split or root / isic.META}: {{}} of a centre that is none of FLamby's six"),
            (unclear, f"{where}: {{}} without exactly one of the 8 classes, or a fold other than train and test"),
            (lacking, f"{root / isic.META}: no row for {{}} of {isic.TRUTH}"),
            (orphans, f"{where}: no row for {{}} of {isic.META}"),
        ):
            if images:
                bad.append(what.format(_some(images)))

    # -- pictures

    def _folders(self, root: Path) -> tuple[Path | None, Path | None]:
        """The folders of raw and of prepared pictures, where they are there and wanted."""
        raw, prepared = (folder if folder.is_dir() else None for folder in (root / isic.RAW, root / isic.PREPARED))
        tree = self.params.tree
        return None if tree == "prepared" else raw, None if tree == "raw" and raw is None else prepared

    def _load(self, data_dir: Path | None, seed: int, *, download: bool, folds: tuple[str, ...]) -> Data:
        self.check(data_dir, download=download)
        root = Path() if data_dir is None else data_dir
        bad: list[str] = []
        with _readable(root):
            named: set[str] = set()
            rows = list(self._rows(root, bad, named))
            rows, notes = self._divided(rows, seed, root)
            wanted = [row for row in rows if row.fold in folds and self._chosen(row)]
            folder, broken = self._pictures(root, [row.image for row in wanted], named, bad)
        pictures.settle(bad, self.params.on_bad_sample)
        wanted = [row for row in wanted if row.image not in broken]
        if not wanted:
            raise LabelSkewError(f"data set isic2019: {root} has no sample of {' and '.join(folds)} that is usable")
        read = lesions.Read(self.params.crop)

        def part(fold: str) -> Arrays:
            half = [row for row in wanted if row.fold == fold]
            files = Images([str(folder / f"{row.image}.jpg") for row in half], (3, read.crop, read.crop), read)
            labels, centres = (np.array([getattr(row, key) for row in half], np.int64) for key in ("target", "centre"))
            return Arrays(files, labels, centres)

        drawn = digest([], [f"{row.image} {row.target} {row.centre}" for row in rows]) if notes else ""
        parts = part("train"), part("test")
        return Data(*parts, list(isic.CLASSES), lesions.MEAN, lesions.STD, notes, drawn, group_names=isic.CENTRES)

    def _chosen(self, row: isic.Row) -> bool:
        return self.params.centres is None or row.centre in self.params.centres

    def _divided(self, rows: list[isic.Row], seed: int, root: Path) -> tuple[list[isic.Row], dict[str, str]]:
        """The rows with their part; where FLamby's split is not there, drawn, and told as a file in its format."""
        if not rows or rows[0].fold:
            return rows, {}
        rows = sorted(rows, key=lambda row: row.image)
        strata = np.array([row.centre * len(isic.CLASSES) + row.target for row in rows])
        _, test = stratified(strata, test_fraction=self.params.test_fraction, seed=seed, where=str(root))
        chosen = set(test.tolist())
        divided = [replace(row, fold="test" if i in chosen else "train") for i, row in enumerate(rows)]
        return divided, {isic.SPLIT: isic.split_text(divided)}

    def _pictures(self, root: Path, images: Sequence[str], named: set[str], bad: list[str]) -> tuple[Path, set[str]]:
        """The folder of prepared pictures, and those of ``images`` that are not in it, or broken."""
        raw, prepared = self._folders(root)
        have = set() if prepared is None else _names(prepared)
        strays = (have if raw is None else _names(raw) | have) - named
        if strays:
            bad.append(f"{raw or prepared}: {_some(sorted(strays))} without a row in the tables")
        folder = root / isic.PREPARED
        unprepared: list[str] = []
        if raw is not None:
            todo = sorted((set(images) & _names(raw)) - have)
            unprepared = prepare_all(raw, folder, todo) if todo else []
            have |= set(todo) - set(unprepared)
        missing = [image for image in images if image not in have and image not in set(unprepared)]
        if missing:
            bad.append(f"{folder if raw is None else raw}: no picture for {_some(missing)} of the tables")
        broken = checked(folder, [image for image in images if image in have]) + unprepared
        if broken:
            bad.append(f"{raw or folder}: {_some(broken)} broken, or no picture at all")
        return folder, {*missing, *broken}


def prepare_all(raw: Path, folder: Path, images: Sequence[str]) -> list[str]:
    """Prepare pictures that are not prepared yet, in parallel, also after a break; returns those that are broken."""
    folder.mkdir(exist_ok=True)

    def one(image: str) -> None:
        target = folder / f"{image}.jpg"
        if not target.exists():  # or else another process has been faster
            lesions.prepare(raw / f"{image}.jpg", target)

    with _alone(folder):
        wrong = pictures.faults(one, images, f"preparing {len(images)} pictures of {raw}, once")
    return [image for image, _ in wrong]


def checked(folder: Path, images: Sequence[str]) -> list[str]:
    """Pictures that cannot be decoded to their end; what was checked before is remembered in the folder."""
    stats = [os.stat(folder / f"{image}.jpg") for image in images]
    key = hashlib.sha256(
        "".join(f"{i} {s.st_size} {s.st_mtime_ns}\n" for i, s in zip(images, stats, strict=True)).encode()
    ).hexdigest()
    file = folder / CHECKED
    known: dict[str, list[str]] = {}
    with suppress(OSError, ValueError, AttributeError, TypeError):
        known = {k: list(map(str, v)) for k, v in json.loads(file.read_text(encoding="utf-8")).items()}
    if key not in known:
        with _alone(folder):
            known[key] = [image for image, _ in _broken(folder, images)]
            with suppress(OSError):  # a folder that only others may write to: it is checked again next time
                write_text(file, json.dumps(known))
    return known[key]


def _broken(folder: Path, images: Sequence[str]) -> list[tuple[str, str]]:
    """The broken ones of a folder's pictures, and what is wrong with each."""
    what = f"checking {len(images)} pictures of {folder}"
    return pictures.faults(lambda image: pictures.opened(folder / f"{image}.jpg", draft=1), images, what)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several processes that want to work in a folder, one at a time, where the folder can be locked."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # without locks everybody works, and nobody breaks what another has done
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(file: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV file that has these columns."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        table = csv.DictReader(stream)
        missing = [column for column in columns if column not in (table.fieldnames or ())]
        if missing:
            raise mistake(file, f"has no column {', '.join(missing)}", f"the columns {','.join(columns)}")
        for row in table:
            if any(row[column] is None for column in columns):
                raise LabelSkewError(f"{file}: line {table.line_num} is cut short; fetch the file again")
            yield row


def _target(line: dict[str, str]) -> int | None:
    """The class of a row with exactly one; None for any other."""
    marked = [c for c, name in enumerate(isic.CLASSES) if line[name].strip() in ("1", "1.0")]
    return marked[0] if len(marked) == 1 else None


def _centre(text: str) -> int | None:
    """A centre from its number, or from the metadata's name: ``BCN_nan``, ``HAM_rosendahl``, ``MSK4nan``."""
    if text.strip().isdecimal():
        return int(text) if int(text) < len(isic.CENTRES) else None
    exact = [centre for centre, name in enumerate(isic.CENTRES) if text == name]
    return next(iter(exact or [c for c in (0, 4) if text.startswith(isic.CENTRES[c])]), None)


def _names(folder: Path) -> set[str]:
    """Names of the JPEGs in a folder, without ``.jpg``."""
    with os.scandir(folder) as entries:
        return {e.name[:-4] for e in entries if e.name.endswith(".jpg") and not e.name.startswith(".")}


def _some(images: Sequence[str]) -> str:
    """How many, and the first."""
    return f"{len(images)} picture{'s' * (len(images) > 1)} (first: {images[0]})"


def _by_class(counts: Iterable[int]) -> str:
    return " ".join(map(str, counts))


def _readable(root: Path) -> AbstractContextManager[None]:
    return readable(f"data set isic2019: {root}", "read or written")
