"""What FLamby's ISIC 2019 consists of: names of its files, their columns, and samples by centre and class."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

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
"""Samples of each class at each centre in FLamby's split."""

RAW, PREPARED = "ISIC_2019_Training_Input", "ISIC_2019_Training_Input_preprocessed"
TRUTH, META = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata_FL.csv"
SPLIT = "train_test_split"
TRUTH_COLUMNS = ("image", *CLASSES, "UNK")
SPLIT_COLUMNS = (*TRUTH_COLUMNS, "target", "center", "fold", "fold2")
META_COLUMNS = ("image", "age_approx", "anatom_site_general", "sex", "dataset")


@dataclass(frozen=True)
class Row:
    """One picture: its name without ``.jpg``, class, centre, and ``"train"``, ``"test"`` or "" where not decided."""

    image: str
    target: int
    centre: int
    fold: str = ""


def split_text(rows: Iterable[Row]) -> str:
    """Rows as a file in the format of FLamby's split."""
    return table_text(
        SPLIT_COLUMNS, ([*truth(row), row.target, row.centre, row.fold, f"{row.fold}_{row.centre}"] for row in rows)
    )


def truth(row: Row) -> list[str]:
    """A row of the ground truth."""
    return [row.image, *("1.0" if c == row.target else "0.0" for c in range(len(TRUTH_COLUMNS) - 1))]


def table_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()
