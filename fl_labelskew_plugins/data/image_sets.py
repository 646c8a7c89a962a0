"""Published data sets of image folders: CINIC-10, Tiny-ImageNet, a subset of ImageNet, HyperKvasir and ODIR.

They differ from ``image_folder`` in where the folders are, in their classes and in the size of their images.
"""

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from fl_labelskew_registry import LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data.image_folder import ImageFolder, ImageParams
from fl_labelskew_plugins.data.stats import IMAGENET
from fl_labelskew_plugins.data.torchvision_sets import CLASSES_10
from fl_labelskew_plugins.data.trees import Samples, images_in, list_images


class ImageSet(ImageFolder):
    """A published data set: ``needed`` are its folders or files, in ``data_cache_dir`` or one of ``inside``."""

    needed: ClassVar[tuple[str, ...]]
    needed_to_test: ClassVar[tuple[str, ...]]
    inside: ClassVar[tuple[str, ...]] = ()

    def groups(self, root: Path, parts: Sequence[str] = ("train",)) -> list[Path]:
        """None: their layout is known."""
        return []

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if folders are missing; torchvision does not download them."""
        self._check_parts(data_dir, self.needed)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        """As :meth:`check`, for the test part."""
        self._check_parts(data_dir, self.needed_to_test)

    def _check_parts(self, data_dir: Path | None, needed: tuple[str, ...]) -> None:
        root = self.root(self._check(data_dir, " and ".join(needed)))
        if missing := [name for name in needed if not os.path.exists(root / name)]:
            raise LabelSkewError(f"data set {self.name}: no {', '.join(missing)} in {root}; get it from {self.source}")

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """As for every image folder, or which folders are missing."""
        root = self.root(self._check(data_dir, " and ".join(self.needed)))
        there = [(name, "found" if os.path.exists(root / name) else "missing", "found") for name in self.needed]
        return super().survey(data_dir) if all(row[1] == "found" for row in there) else there

    def root(self, data_dir: Path | None) -> Path:
        """``data_dir``, or the folder in it that an archive unpacks to."""
        top = super().root(data_dir)
        has = [
            top / name
            for name in ("", *self.inside)
            if any(map(os.path.exists, (top / name / needed for needed in self.needed)))
        ]
        return has[0] if has else top


class CINIC10(ImageSet):
    """CINIC-10: 90,000 images in each of train, valid and test; samples are ``(3, 32, 32)`` uint8.

    Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018; mean and standard deviation are the authors'.
    """

    name = "cinic10"
    source = "https://datashare.ed.ac.uk/handle/10283/3192, CINIC-10.tar.gz, 688 MB"
    needed = ("train", "test")
    needed_to_test = ("test",)
    inside = ("CINIC-10", "cinic-10")
    known_classes = CLASSES_10
    moments = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
    real: ClassVar[dict[str, str]] = {"training images": "90000", "test images": "90000", "classes": "10"}
    fake_size = (32, 32)
    fake_parts = ("train", "valid", "test")

    class Params(ImageParams):
        """Parameters of cinic10."""

        valid: Literal["unused", "train"] = Field("unused", description="train: the part valid is trained on as well.")

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if folders are missing; torchvision does not download them."""
        self._check_parts(data_dir, ("train", "valid", "test") if self.params.valid == "train" else self.needed)

    def find(self, data_dir: Path, groups: Sequence[Path] | None = None) -> tuple[Samples, Samples | None]:
        """The images of train, and of valid where it is trained on, and those of test."""
        train, test = super().find(data_dir, groups)
        return (train + self.listed(data_dir / "valid") if self.params.valid == "train" else train), test

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """As for every image folder; valid has a row of its own."""
        rows = super(CINIC10, CINIC10()).survey(data_dir)
        valid = self.root(data_dir) / "valid"
        return [
            *rows,
            ("validation images", str(len(images_in(valid))) if os.path.isdir(valid) else "missing", "90000"),
        ]

    def fake_path(self, part: str, name: str, i: int) -> str:
        """As in the real one, whose file names say where an image is from."""
        return f"{part}/{name}/cifar10-{'test' if part == 'test' else 'train'}-{i}.png"


class TinyImageNet(ImageSet):
    """Tiny-ImageNet: 100,000 + 10,000 images of 200 classes; samples are ``(3, 64, 64)`` uint8. Le and Yang, 2015.

    The validation part is the test part here, as everywhere: the real test part has no labels.
    """

    name = "tiny_imagenet"
    source = "http://cs231n.stanford.edu/tiny-imagenet-200.zip, 248 MB"
    needed = ("train", "val")
    needed_to_test = ("val",)
    inside = ("tiny-imagenet-200",)
    moments = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))  # of the training part, in wide use
    real: ClassVar[dict[str, str]] = {"training images": "100000", "test images": "10000", "classes": "200"}
    fake_classes = tuple(f"n{1443537 + 7919 * c:08d}" for c in range(200))
    fake_size = (64, 64)
    fake_parts = ("train", "val")

    class Params(ImageParams):
        """Parameters of tiny_imagenet."""

        image_size: int = Field(64, ge=1, le=1024, description="Pixels of each side.")

    def fake_path(self, part: str, name: str, i: int) -> str:
        """As in the real one."""
        top = "tiny-imagenet-200"
        return f"{top}/val/images/val_{i}.JPEG" if part == "val" else f"{top}/train/{name}/images/{name}_{i}.JPEG"

    def fake_notes(self, out: Path, written: Sequence[tuple[str, str, str]]) -> None:
        """The classes, and those of the validation images."""
        top = out / "tiny-imagenet-200"
        lines = [f"{file}\t{name}\t0\t0\t63\t63\n" for part, file, name in written if part == "val"]
        (top / "val" / "val_annotations.txt").write_text("".join(lines), encoding="utf-8")
        (top / "wnids.txt").write_text("".join(f"{name}\n" for name in self.fake_classes), encoding="utf-8")


class ImageNetSubset(ImageSet):
    """12 classes of ImageNet at 64x64, FedLC's section 5.2, which does not say which; samples ``(3, 64, 64)`` uint8."""

    name = "imagenet_subset"
    source = (
        "https://www.image-net.org, ILSVRC 2012, 144 GB, with an account; 12 of its class folders in train/ and val/"
    )
    needed = ("train",)
    needed_to_test = ()
    moments = IMAGENET
    real: ClassVar[dict[str, str]] = {"classes": "12"}
    fake_classes = tuple(f"n{1440764 + 104729 * c:08d}" for c in range(12))
    fake_size = (72, 96)
    fake_parts = ("train", "val")

    class Params(ImageParams):
        """Parameters of imagenet_subset."""

        image_size: int = Field(64, ge=1, le=1024, description="Pixels of each side.")

    def fake_path(self, part: str, name: str, i: int) -> str:
        """As in the real one."""
        return f"{part}/{name}/" + (f"{name}_{i}.JPEG" if part == "train" else f"ILSVRC2012_val_{i:08d}.JPEG")


KVASIR = {  # folder: classes; 10,662 images in all
    "lower-gi-tract/anatomical-landmarks": "cecum ileum retroflex-rectum",
    "lower-gi-tract/pathological-findings": (
        "hemorrhoids polyps ulcerative-colitis-grade-0-1 ulcerative-colitis-grade-1 ulcerative-colitis-grade-1-2 "
        "ulcerative-colitis-grade-2 ulcerative-colitis-grade-2-3 ulcerative-colitis-grade-3"
    ),
    "lower-gi-tract/quality-of-mucosal-views": "bbps-0-1 bbps-2-3 impacted-stool",
    "lower-gi-tract/therapeutic-interventions": "dyed-lifted-polyps dyed-resection-margins",
    "upper-gi-tract/anatomical-landmarks": "pylorus retroflex-stomach z-line",
    "upper-gi-tract/pathological-findings": "barretts barretts-short-segment esophagitis-a esophagitis-b-d",
}
KVASIR_FOLDERS = {name: folder for folder, names in KVASIR.items() for name in names.split()}


class HyperKvasir(ImageSet):
    """HyperKvasir's 10,662 labelled images of 23 classes; samples are ``(3, 128, 128)`` uint8.

    Borgli et al., "HyperKvasir, a comprehensive multi-class image and video dataset for gastrointestinal endoscopy",
    Scientific Data 7, 2020. There is no test part: one is split off. FedMR (table 13) says neither how it splits nor at
    what size it trains.
    """

    name = "hyperkvasir"
    source = "https://datasets.simula.no/hyper-kvasir, hyper-kvasir-labeled-images.zip, 3.9 GB"
    needed = ("lower-gi-tract", "upper-gi-tract")
    needed_to_test = needed
    inside = ("labeled-images", "hyper-kvasir-labeled-images/labeled-images")
    known_classes = tuple(sorted(KVASIR_FOLDERS))
    real: ClassVar[dict[str, str]] = {"images": "10662", "classes": "23"}
    fake_size = (96, 120)
    fake_parts = ("labeled-images",)

    class Params(ImageParams):
        """Parameters of hyperkvasir."""

        image_size: int = Field(128, ge=1, le=1024, description="Pixels of each side.")

    def find(self, data_dir: Path, groups: Sequence[Path] | None = None) -> tuple[Samples, Samples | None]:
        """The images of all class folders, at the third level, or of those of ``class_names`` alone."""
        left_out = set(KVASIR_FOLDERS) - set(self.params.class_names or KVASIR_FOLDERS)
        folders = (folder for folder in data_dir.glob("*-gi-tract/*/*") if folder.name not in left_out)
        return list_images(folders, f"data set {self.name}: {data_dir}"), None

    def find_test(self, data_dir: Path) -> None:
        """None: it is split off."""

    def fake_path(self, part: str, name: str, i: int) -> str:
        """As in the real one."""
        return f"{part}/{KVASIR_FOLDERS[name]}/{name}/{i:08x}.jpg"

    def fake_notes(self, out: Path, written: Sequence[tuple[str, str, str]]) -> None:
        """``image-labels.csv``, which is not read here."""
        with (out / "labeled-images" / "image-labels.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["Video file", "Organ", "Finding", "Classification"])
            for _, name, label in written:
                organ, _, kind = KVASIR_FOLDERS[label].partition("/")
                rows.writerow([Path(name).stem, f"{organ.split('-')[0].title()} GI", label, kind])


ODIR_COLUMNS = [
    "ID", "Patient Age", "Patient Sex", "Left-Fundus", "Right-Fundus", "Left-Diagnostic Keywords",
    "Right-Diagnostic Keywords", *"NDGCAHMO", "filepath", "labels", "target", "filename",
]  # fmt: skip


class ODIR(ImageSet):
    """ODIR-5K: 6,392 fundus images of 8 diagnoses, as Kaggle has it; samples are ``(3, 128, 128)`` uint8.

    Peking University's challenge on ocular disease recognition, 2019. ``full_df.csv`` names one diagnosis for each
    image of ``preprocessed_images/``: normal, diabetes, glaucoma, cataract, age-related macular degeneration,
    hypertension, myopia, other. There is no test part: patients are split off, both eyes together. FedMR (table 13)
    says neither how it splits nor at what size it trains.
    """

    name = "odir"
    source = "https://www.kaggle.com/datasets/andrewmvd/ocular-disease-recognition-odir5k, about 2 GB"
    needed = ("full_df.csv", "preprocessed_images")
    needed_to_test = needed
    known_classes = tuple("NDGCAHMO")
    real: ClassVar[dict[str, str]] = {"images": "6392", "classes": "8"}
    fake_size = (128, 128)
    fake_parts = ("preprocessed_images",)

    class Params(ImageParams):
        """Parameters of odir."""

        image_size: int = Field(128, ge=1, le=1024, description="Pixels of each side.")

    def find(self, data_dir: Path, groups: Sequence[Path] | None = None) -> tuple[Samples, Samples | None]:
        """The images that the table names.

        Raises:
            LabelSkewError: a row is not as it should be.
        """
        table = data_dir / "full_df.csv"
        samples: Samples = []
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                image, label = row.get("filename") or "", re.fullmatch(r"\['([NDGCAHMO])'\]", row.get("labels") or "")
                if label is None or not re.fullmatch(r"\d+_(left|right)\.jpg", image):
                    raise LabelSkewError(
                        f"{table}: image {image!r} has labels {row.get('labels')!r}; "
                        "use names such as 0_right.jpg and labels such as ['N']"
                    )
                samples.append((data_dir / "preprocessed_images" / image, label[1]))
        if not samples:
            raise mistake(table, "names no image", "rows with filename and labels")
        return samples, None

    def find_test(self, data_dir: Path) -> None:
        """None: it is split off."""

    def split(
        self, samples: Samples, labels: NDArray[np.int64], *, seed: int, where: str
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split by patients, whose number starts a file's name; a patient counts for the class of the first image."""
        numbers = np.array([int(path.name.partition("_")[0]) for path, _ in samples])
        _, first, patient = np.unique(numbers, return_index=True, return_inverse=True)
        train, test = super().split(samples, labels[first], seed=seed, where=where)
        return np.flatnonzero(np.isin(patient, train)), np.flatnonzero(np.isin(patient, test))

    def fake_path(self, part: str, name: str, i: int) -> str:
        """Both eyes of a patient, one after the other."""
        return f"{part}/{i // 2}_{'right' if i % 2 else 'left'}.jpg"

    def fake_notes(self, out: Path, written: Sequence[tuple[str, str, str]]) -> None:
        """The table of diagnoses."""
        with (out / "full_df.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.DictWriter(file, ODIR_COLUMNS, restval="")
            rows.writeheader()
            for _, name, label in written:
                patient = name.partition("_")[0]
                target = [int(letter == label) for letter in "NDGCAHMO"]
                row = {"ID": patient, "Left-Fundus": f"{patient}_left.jpg", "Right-Fundus": f"{patient}_right.jpg"}
                row |= dict(zip("NDGCAHMO", map(str, target), strict=True))
                rows.writerow(row | {"labels": f"['{label}']", "target": str(target), "filename": name})
