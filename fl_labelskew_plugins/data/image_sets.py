"""Published data sets of image folders: CINIC-10, Tiny-ImageNet, a subset of ImageNet, HyperKvasir and ODIR."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fl_labelskew_registry import mistake
from pydantic import Field

from fl_labelskew_plugins.data.image_folder import ImageFolder, ImageParams, LabelledFiles, list_images
from fl_labelskew_plugins.data.stats import IMAGENET
from fl_labelskew_plugins.data.torchvision_sets import CLASSES_10
from fl_labelskew_plugins.machine.files import open_regular
from fl_labelskew_plugins.partition.base import Indices


class CINIC10(ImageFolder):
    """CINIC-10: 90,000 images in each of train, valid and test; samples are ``(3, 32, 32)`` uint8.

    Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018, with the authors' mean and standard deviation.
    """

    name = "cinic10"
    source = "https://datashare.ed.ac.uk/handle/10283/3192, CINIC-10.tar.gz, 688 MB"
    required_paths = ("train", "test")
    archive_folders = ("CINIC-10", "cinic-10")
    known_classes = CLASSES_10
    moments = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
    expected_survey: ClassVar[dict[str, str]] = {"training images": "90000", "test images": "90000", "classes": "10"}
    fake_size = (32, 32)
    fake_files: ClassVar = {
        "train": lambda name, i: f"train/{name}/cifar10-train-{i}.png",
        "test": lambda name, i: f"test/{name}/cifar10-test-{i}.png",
    }

    Params: ClassVar[Any] = ImageParams


class TinyImageNet(ImageFolder):
    """Tiny-ImageNet: 100,000 + 10,000 images of 200 classes; samples are ``(3, 64, 64)`` uint8. Le and Yang, 2015.

    The test part is the validation part: the real test part has no labels.
    """

    name = "tiny_imagenet"
    source = "http://cs231n.stanford.edu/tiny-imagenet-200.zip, 248 MB"
    required_paths = ("train", "val")
    archive_folders = ("tiny-imagenet-200",)
    moments = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))  # commonly used, of the training part
    expected_survey: ClassVar[dict[str, str]] = {"training images": "100000", "test images": "10000", "classes": "200"}
    fake_classes = tuple(f"n{1443537 + 7919 * c:08d}" for c in range(200))
    fake_size = (64, 64)
    fake_files: ClassVar = {
        "train": lambda name, i: f"tiny-imagenet-200/train/{name}/images/{name}_{i}.JPEG",
        "val": lambda name, i: f"tiny-imagenet-200/val/images/val_{i}.JPEG",
    }

    class Params(ImageParams):
        image_size: int = Field(64, ge=1, le=1024, description="Height and width in pixels.")

    def fake_table(self, out: Path, written: LabelledFiles) -> None:
        lines = [f"{path.name}\t{name}\t0\t0\t63\t63\n" for path, name in written if path.name.startswith("val_")]
        (out / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text("".join(lines), encoding="utf-8")


class ImageNetSubset(ImageFolder):
    """12 classes of ImageNet at 64x64 (FedLC, section 5.2, which does not name them); samples ``(3, 64, 64)`` uint8."""

    name = "imagenet_subset"
    source = (
        "https://www.image-net.org, ILSVRC 2012, 144 GB, with an account; 12 of its class folders in train/ and val/"
    )
    required_paths = ("train",)
    moments = IMAGENET
    expected_survey: ClassVar[dict[str, str]] = {"classes": "12"}
    fake_classes = tuple(f"n{1440764 + 104729 * c:08d}" for c in range(12))
    fake_size = (72, 96)
    fake_files: ClassVar = {
        "train": lambda name, i: f"train/{name}/{name}_{i}.JPEG",
        "val": lambda name, i: f"val/{name}/ILSVRC2012_val_{i:08d}.JPEG",
    }
    Params: ClassVar[Any] = TinyImageNet.Params


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


class HyperKvasir(ImageFolder):
    """HyperKvasir's 10,662 labelled images of 23 classes; samples are ``(3, 128, 128)`` uint8.

    Borgli et al., "HyperKvasir, a comprehensive multi-class image and video dataset for gastrointestinal endoscopy",
    Scientific Data 7, 2020. The test part is split off. FedMR (table 13) states neither split nor image size.
    """

    name = "hyperkvasir"
    source = "https://datasets.simula.no/hyper-kvasir, hyper-kvasir-labeled-images.zip, 3.9 GB"
    required_paths = ("lower-gi-tract", "upper-gi-tract")
    archive_folders = ("labeled-images", "hyper-kvasir-labeled-images/labeled-images")
    known_classes = tuple(sorted(KVASIR_FOLDERS))
    expected_survey: ClassVar[dict[str, str]] = {"images": "10662", "classes": "23"}
    fake_size = (96, 120)
    fake_files: ClassVar = {"train": lambda name, i: f"labeled-images/{KVASIR_FOLDERS[name]}/{name}/{i:08x}.jpg"}

    class Params(ImageParams):
        image_size: int = Field(128, ge=1, le=1024, description="Height and width in pixels.")

    def find(self, data_dir: Path, groups: Sequence[Path]) -> tuple[LabelledFiles, LabelledFiles | None]:
        omitted = set(KVASIR_FOLDERS) - set(self.params.class_names or KVASIR_FOLDERS)
        folders = (folder for folder in data_dir.glob("*-gi-tract/*/*") if folder.name not in omitted)
        return list_images(folders, f"data set {self.name}: {data_dir}"), None


class ODIR(ImageFolder):
    """ODIR-5K: 6,392 fundus images of 8 diagnoses, in Kaggle's version; samples are ``(3, 128, 128)`` uint8.

    Peking University's challenge on ocular disease recognition, 2019. ``full_df.csv`` has one diagnosis for each
    image: normal, diabetes, glaucoma, cataract, age-related macular degeneration, hypertension, myopia, other. The test
    part is split off by patient. FedMR (table 13) states neither split nor image size.
    """

    name = "odir"
    source = "https://www.kaggle.com/datasets/andrewmvd/ocular-disease-recognition-odir5k, about 2 GB"
    required_paths = ("full_df.csv", "preprocessed_images")
    known_classes = tuple("NDGCAHMO")
    expected_survey: ClassVar[dict[str, str]] = {"images": "6392", "classes": "8"}
    fake_size = (128, 128)
    fake_files: ClassVar = {"train": lambda name, i: f"preprocessed_images/{i // 2}_{'right' if i % 2 else 'left'}.jpg"}
    Params: ClassVar[Any] = HyperKvasir.Params

    def find(self, data_dir: Path, groups: Sequence[Path]) -> tuple[LabelledFiles, LabelledFiles | None]:
        table = data_dir / "full_df.csv"
        samples: LabelledFiles = []
        with open(table, encoding="utf-8", newline="", opener=open_regular) as file:
            for row in csv.DictReader(file):
                image, label = row.get("filename") or "", re.fullmatch(r"\['([NDGCAHMO])'\]", row.get("labels") or "")
                if label is None or not re.fullmatch(r"\d+_(left|right)\.jpg", image):
                    problem = f"image {image!r} has labels {row.get('labels')!r}"
                    raise mistake(table, problem, "names such as 0_right.jpg and labels such as ['N']")
                samples.append((data_dir / "preprocessed_images" / image, label[1]))
        if not samples:
            raise mistake(table, "has no images", "rows with filename and labels")
        return samples, None

    def split(self, samples: LabelledFiles, labels: Indices, *, seed: int, where: str) -> tuple[Indices, Indices]:
        """Split by patient, the number in the file name, stratified by the first image's class."""
        numbers = np.array([int(path.name.partition("_")[0]) for path, _ in samples])
        _, first, patient = np.unique(numbers, return_index=True, return_inverse=True)
        train, test = super().split(samples, labels[first], seed=seed, where=where)
        return np.flatnonzero(np.isin(patient, train)), np.flatnonzero(np.isin(patient, test))

    def fake_table(self, out: Path, written: LabelledFiles) -> None:
        with (out / "full_df.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["ID", "labels", "filename"])
            rows.writerows([path.name.partition("_")[0], f"['{name}']", path.name] for path, name in written)
