"""ISIC 2019 by six centres, from FLamby's files: 18,597 + 4,650 images of skin lesions in 8 classes.

Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", 2022; images of Tschandl et al. 2018 (HAM10000), Codella et al. 2017 and Hernández-Pérez et al. 2024
(BCN20000), CC-BY-NC 4.0. Images are decoded during training.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, Images, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data import fakes, lesions, pictures
from fl_labelskew_plugins.data.files import readable, sound
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.table import SOUND
from fl_labelskew_plugins.machine.files import check_regular, locked, read_text, write_text
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.stratified import stratified

if TYPE_CHECKING:
    import pandas as pd

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
TABLE = {
    "train": (
        (2279, 3363, 2245, 606, 923, 97, 87, 330),
        (20, 2977, 2, 0, 96, 23, 45, 0),
        (533, 1470, 174, 20, 379, 40, 64, 11),
        (276, 649, 223, 86, 406, 20, 3, 144),
        (166, 349, 0, 0, 140, 0, 0, 0),
        (58, 276, 5, 0, 6, 4, 2, 0),
    ),
    "test": (
        (578, 843, 564, 131, 215, 27, 24, 101),
        (4, 743, 0, 0, 28, 7, 9, 0),
        (147, 362, 37, 1, 96, 11, 18, 0),
        (66, 154, 73, 23, 84, 10, 0, 42),
        (49, 66, 0, 0, 49, 0, 0, 0),
        (9, 74, 0, 0, 4, 0, 1, 0),
    ),
}
"""Samples per centre and class in FLamby's split."""

RAW, PREPARED = "ISIC_2019_Training_Input", "ISIC_2019_Training_Input_preprocessed"
TRUTH, META = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata_FL.csv"
SPLIT = "train_test_split"
TRUTH_COLUMNS = ("image", *CLASSES, "UNK")
SPLIT_COLUMNS = (*TRUTH_COLUMNS, "target", "center", "fold", "fold2")
TEST_FRACTION = 0.2  # of each class at each centre, without FLamby's split
CHECKED = ".labelskew-checked.json"


class ISIC2019(Dataset):
    """ISIC 2019; samples are ``(3, crop, crop)`` uint8, decoded when needed; groups are the six centres."""

    source: ClassVar[str] = (
        "the scripts of https://github.com/owkin/FLamby (flamby/datasets/fed_isic2019) or "
        "https://challenge.isic-archive.com/data/#2019, 9 GB, CC-BY-NC; see docs/isic2019.md"
    )
    picture_keys = ("crop",)

    class Params(Params):
        """Parameters of isic2019."""

        crop: int = Field(200, ge=16, le=224, description="Height and width of the network's input in pixels.")
        centres: tuple[Annotated[int, Field(ge=0, lt=len(CENTRES))], ...] | None = Field(
            None, min_length=1, description="Centres to read, 0 to 5; default: all. Each silo sets its own."
        )
        on_bad_sample: pictures.OnBadSample = Field(
            "stop", description="Treatment of broken images, and of rows without an image or images without a row."
        )

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if the folder of images or the tables are missing."""
        wrong = "download: true is not supported" if download else "data_args.data_cache_dir is not set"
        if data_dir is not None and not download:
            missing = [] if any((data_dir / name).is_dir() for name in (RAW, PREPARED)) else [f"{PREPARED}/ or {RAW}/"]
            missing += [name for name in _tables(data_dir) if not os.path.isfile(data_dir / name)]
            wrong = f"no {', '.join(missing)} in {data_dir}" if missing else ""
        if wrong:
            raise LabelSkewError(f"data set isic2019: {wrong}; get it from {self.source}")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read the tables, prepare and check the images; ``seed`` draws a missing split."""
        return self._load(data_dir, seed, download=download, folds=("train", "test"))

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read only the test part."""
        return self._load(data_dir, seed, download=download, folds=("test",))

    def splits_off(self, data_dir: Path | None) -> bool:
        """Whether FLamby's split is missing."""
        return _tables(data_dir or Path()) != [SPLIT]

    def picture(self, file: Path) -> NDArray[np.uint8]:
        """See :func:`.lesions.sample`."""
        return lesions.sample(file, self.params.crop)

    def survey(self, data_dir: Path | None) -> fakes.SurveyRows:
        """Files, images, and samples per centre."""
        root = data_dir or Path()
        tables = [(name, "found" if os.path.isfile(root / name) else "missing", "found") for name in _tables(root)]
        with _readable(root):
            folder = root / (PREPARED if (root / PREPARED).is_dir() else RAW)
            files = _names(folder) if folder.is_dir() else set()
            pictures_found = ("pictures", str(len(files)) if files else "missing", str(np.sum([*TABLE.values()])))
            if any(state == "missing" for _, state, _ in tables):
                return [*tables, pictures_found]
            listed, named = _rows(root, [])
        rows = [
            *tables,
            pictures_found,
            ("rows without a picture", str(len({*listed.image} - files)), "0"),
            ("pictures without a row", str(len(files - named)), "0"),
            ("rows of no known centre or class", str(len(named) - len(listed)), "0"),
            ("samples of each class", " ".join(CLASSES), " ".join(CLASSES)),
        ]
        for fold in ("",) if self.splits_off(data_dir) else ("train", "test"):
            expected = np.sum([TABLE[part] for part in ([fold] if fold else TABLE)], axis=0)
            for centre, name in enumerate(CENTRES):
                targets = listed.target[(listed.centre == centre) & (listed.fold == fold)]
                of_classes = (np.bincount(targets, minlength=len(CLASSES)), expected[centre])
                actual, published = (" ".join(map(str, counts)) for counts in of_classes)
                item = f"centre {centre} {name}, {fold or 'both parts'}"
                rows.append((item, actual if len(targets) else "missing", published))
        return rows

    def broken(self, data_dir: Path | None) -> list[str]:
        """Errors of images in the tables, raw and prepared."""
        self.check(data_dir, download=False)
        root = data_dir or Path()
        with _readable(root):
            named = {*self._chosen(_rows(root, [])[0]).image}
            folders = [root / name for name in (RAW, PREPARED) if (root / name).is_dir()]
            return [line for folder in folders for _, line in _broken(folder, sorted(named & _names(folder)))]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write prepared JPEGs and a split, with the proportions of :data:`TABLE`."""
        rng, table = seeds.numpy_generator(seed, "fake lesions"), np.array([*TABLE.values()])
        least, number = int((table > 0).sum()), samples or 240
        if number < least:
            raise mistake("data set isic2019", f"{number} samples are too few", f"at least {least}")
        more = rng.multinomial(number - least, (table / table.sum()).ravel()).reshape(table.shape)
        cells = np.repeat(np.argwhere(table >= 0), (more + (table > 0)).ravel(), axis=0)
        patterns = fakes.patterns(len(CLASSES), (3, lesions.SHORT_SIDE, 300), rng)
        lines = []
        for (fold, centre, target), i in zip(cells.tolist(), rng.permutation(10**6), strict=False):
            lines.append((f"ISIC_{i:07d}", target, centre, (*TABLE,)[fold]))
            pixels = fakes.noisy(patterns, np.array([target]), rng)[0]
            fakes.write_picture(out / PREPARED / f"{lines[-1][0]}.jpg", pixels)
        (out / SPLIT).write_text(split_text(lines), encoding="utf-8")

    def _load(self, data_dir: Path | None, seed: int, *, download: bool, folds: tuple[str, ...]) -> Data:
        self.check(data_dir, download=download)
        root, notes, fingerprint = data_dir or Path(), {}, ""
        bad: list[str] = []
        with _readable(root):
            rows, named = _rows(root, bad)
            if len(rows) and self.splits_off(data_dir):
                rows = rows.sort_values("image")
                strata = (rows.centre * len(CLASSES) + rows.target).to_numpy()
                _, test = stratified(strata, test_fraction=TEST_FRACTION, seed=seed, where=str(root))
                rows["fold"] = np.where(np.isin(np.arange(len(rows)), test), "test", "train")
                notes = {SPLIT: split_text(rows.itertuples(index=False))}
                kept = rows[["image", "target", "centre"]].itertuples(index=False)
                fingerprint = digest([], [" ".join(map(str, row)) for row in kept])
            wanted = self._chosen(rows[rows.fold.isin(folds)])
            folder, broken = _pictures(root, wanted.image.tolist(), named, bad)
        pictures.settle(bad, self.params.on_bad_sample)
        wanted = wanted[~wanted.image.isin(broken)]
        if wanted.empty:
            raise LabelSkewError(f"data set isic2019: {root} has no usable sample of {' and '.join(folds)}")
        read = lesions.LesionReader(self.params.crop)

        def part(fold: str) -> Arrays:
            half = wanted[wanted.fold == fold]
            files = Images([str(folder / f"{name}.jpg") for name in half.image], (3, read.crop, read.crop), read)
            return Arrays(files, np.array(half.target, np.int64), np.array(half.centre, np.int64))

        parts = part("train"), part("test")
        return Data(*parts, list(CLASSES), lesions.MEAN, lesions.STD, notes, fingerprint, group_names=CENTRES)

    def _chosen(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows if self.params.centres is None else rows[rows.centre.isin(self.params.centres)]


def _tables(root: Path) -> list[str]:
    return [SPLIT] if os.path.isfile(root / SPLIT) else [TRUTH, META]


def _rows(root: Path, bad: list[str]) -> tuple[pd.DataFrame, set[str]]:
    """Usable rows (image, target, centre, fold or ""), and the names of all images; errors are added to ``bad``."""
    import pandas as pd

    where, *meta = (root / name for name in _tables(root))
    frame = _read(where, TRUTH_COLUMNS if meta else SPLIT_COLUMNS)
    if len(duplicates := frame.image[frame.image.duplicated()]):
        raise LabelSkewError(f"{where}: image {duplicates.iloc[0]} has two rows; keep one of them")
    if meta:
        of_meta = _read(meta[0], ("image", "dataset"))
        known = dict(zip(of_meta.image, map(_centre, of_meta.dataset), strict=True))
        lacking, centres, folds = ~frame.image.isin(known), frame.image.map(known), pd.Series("", frame.index)
        orphans = sorted(known.keys() - {*frame.image})
    else:
        centres, folds, orphans = pd.to_numeric(frame.center, errors="coerce"), frame.fold, []
        lacking = pd.Series(False, frame.index)
    marked = (frame[list(CLASSES)].apply(pd.to_numeric, errors="coerce") == 1).to_numpy()
    of_centre = centres.isin(range(len(CENTRES)))
    clear = (marked.sum(axis=1) == 1) & folds.isin(["", *TABLE])
    unclear = "without exactly one of the 8 classes, or a fold other than train and test"
    for images, start, end in (
        (frame.image[~lacking & ~of_centre], f"{[where, *meta][-1]}:", "of a centre that is not one of FLamby's six"),
        (frame.image[of_centre & ~clear], f"{where}:", unclear),
        (frame.image[lacking], f"{root / META}: no row for", f"of {TRUTH}"),
        (orphans, f"{where}: no row for", f"of {META}"),
    ):
        if len(images):
            bad.append(f"{start} {_some(list(images))} {end}")
    columns = {"image": frame.image, "target": marked.argmax(axis=1), "centre": centres, "fold": folds}
    return pd.DataFrame(columns)[of_centre & clear].astype({"centre": int}), {*frame.image}


def _read(file: Path, needed: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    with sound(file, *SOUND):
        check_regular(file)
        frame = pd.read_csv(file, dtype=str, encoding="utf-8-sig", index_col=False, usecols=lambda name: name in needed)
    if missing := [name for name in needed if name not in frame]:
        raise mistake(file, f"has no column {', '.join(missing)}", f"the columns {','.join(needed)}")
    if (cut := frame.isna().any(axis=1)).any():
        raise LabelSkewError(f"{file}: line {int(cut.to_numpy().argmax()) + 2} is incomplete; download the file again")
    return frame


def _centre(dataset: str) -> int:
    """Number of a centre from a name such as ``BCN_nan`` or ``MSK4nan``; -1 for unknown ones."""
    if dataset in CENTRES:
        return CENTRES.index(dataset)
    return next((c for c in (0, 4) if dataset.startswith(CENTRES[c])), -1)


def split_text(rows: Iterable[tuple[str, int, int, str]]) -> str:
    """Rows of image, target, centre and fold, as in FLamby's split."""
    lines = [",".join(SPLIT_COLUMNS)]
    for image, target, centre, fold in rows:
        truth = ["1.0" if c == target else "0.0" for c in range(len(TRUTH_COLUMNS) - 1)]
        lines.append(",".join([image, *truth, str(target), str(centre), fold, f"{fold}_{centre}"]))
    return "\n".join([*lines, ""])


def _pictures(root: Path, images: Sequence[str], named: set[str], bad: list[str]) -> tuple[Path, set[str]]:
    """The folder of prepared images, and those that are missing or broken."""
    raw, folder = root / RAW, root / PREPARED
    have = _names(folder) if folder.is_dir() else set()
    of_raw = _names(raw) if raw.is_dir() else None
    place = folder if of_raw is None else raw
    if strays := ((of_raw or set()) | have) - named:
        bad.append(f"{place}: {_some(sorted(strays))} without a row in the tables")
    todo = sorted(({*images} & (of_raw or set())) - have)
    unprepared = prepare_all(raw, folder, todo) if todo else []
    have |= {*todo}
    missing = [image for image in images if image not in have]
    if missing:
        bad.append(f"{place}: no picture for {_some(missing)} of the tables")
    have -= {*unprepared}
    broken = checked(folder, [image for image in images if image in have]) + unprepared
    if broken:
        bad.append(f"{place}: {_some(broken)} broken, or not an image")
    return folder, {*missing, *broken}


def prepare_all(raw: Path, folder: Path, images: Sequence[str]) -> list[str]:
    """Prepare images in parallel; return the broken ones."""
    folder.mkdir(exist_ok=True)

    def one(image: str) -> None:
        target = folder / f"{image}.jpg"
        if not target.exists():  # another process may have been faster
            lesions.prepare(raw / f"{image}.jpg", target)

    with locked(folder):
        wrong = pictures.faults(one, images, f"preparing {len(images)} pictures of {raw}, once")
    return [image for image, _ in wrong]


def checked(folder: Path, images: Sequence[str]) -> list[str]:
    """Broken images; results are cached in the folder."""
    stats = [os.stat(folder / f"{image}.jpg") for image in images]
    key = hashlib.sha256(
        "".join(f"{i} {s.st_size} {s.st_mtime_ns}\n" for i, s in zip(images, stats, strict=True)).encode()
    ).hexdigest()
    file = folder / CHECKED
    known: dict[str, list[str]] = {}
    with suppress(OSError, ValueError, AttributeError, TypeError):
        known = {k: list(map(str, v)) for k, v in json.loads(read_text(file)).items()}
    if key not in known:
        with locked(folder):
            known[key] = [image for image, _ in _broken(folder, images)]
            with suppress(OSError):  # read-only folder: check again next time
                write_text(file, json.dumps(known))
    return known[key]


def _broken(folder: Path, images: Sequence[str]) -> list[tuple[str, str]]:
    task = f"checking {len(images)} pictures of {folder}"
    return pictures.faults(lambda image: pictures.opened(folder / f"{image}.jpg", draft=1), images, task)


def _names(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {e.name[:-4] for e in entries if e.name.endswith(".jpg") and not e.name.startswith(".")}


def _some(images: Sequence[str]) -> str:
    return f"{len(images)} picture{'s' * (len(images) > 1)} (first: {images[0]})"


def _readable(root: Path) -> AbstractContextManager[None]:
    return readable(f"data set isic2019: {root}", "read or written")
