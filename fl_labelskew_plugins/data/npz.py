"""NumPy archives: ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``, and optionally ``groups``.

Unless ``classes`` is set, all labels ``0 .. C-1`` must occur. A server that only tests needs only ``x_test`` and
``y_test``. ``groups`` are also read as ``groups_train`` and ``groups_test``. Pickled objects are never read.
"""

import math
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data.files import only_file, unpacks, valid_file
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.stats import moments
from fl_labelskew_plugins.machine.files import open_regular
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.stratified import picked, stratified

Layout = Literal["auto", "nchw", "nhwc", "flat"]
MAX_PACKED = 100  # ratio of the arrays' size to the file's
TEXT = 150  # bytes of memory to convert a text label to a number
VALID_FILE = (".npz archive of plain arrays", "one written by numpy.savez, without objects")
KNOWN = ["class_names", *(f"{name}{part}" for name in ("x", "y", "groups") for part in ("", "_train", "_test"))]


def read_archive(path: Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Arrays of a file, by name. Raise LabelSkewError for other files, pickles, or too little memory."""
    with valid_file(path, *VALID_FILE), open(path, "rb", opener=open_regular) as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:  # np.load would ignore its size
            raise mistake(path, "contains a single array", "an .npz archive with x and y")
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        names = [name for name in archive.files if names is None or name in names]
        _check_sizes(path, archive.zip, names)
        return {name: archive[name] for name in names}


def _check_sizes(path: Path, archive: zipfile.ZipFile, names: Collection[str]) -> None:
    form: Any = np.lib.format
    read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    need = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name not in names:
            continue
        with archive.open(info) as member:
            shape, _, dtype = read[form.read_magic(member)](member)
            if dtype.kind not in "biufSU" or not dtype.itemsize:
                raise ValueError(f"{clean(name, 40)} has type {clean(dtype, 40)}, expected numbers or texts")
            count, size = math.prod(shape), math.prod(shape) * dtype.itemsize
            if member.tell() + size != info.file_size:
                raise ValueError(f"{clean(name, 40)} has {info.file_size} bytes, but its header says {size}")
        # texts are decoded, sorted and counted; numbers except uint8 become float32, and are copied
        letters = dtype.itemsize // (4 if dtype.kind == "U" else 1)
        becomes = TEXT + 16 * letters if dtype.kind in "SU" else 1 if dtype == np.uint8 else 8
        need += size + count * becomes
    use = "fewer samples, or an archive of numpy.savez, which is not compressed"
    unpacks(path, need, "its arrays", MAX_PACKED, use)


def read_named(path: Path) -> tuple[dict[str, NDArray[Any]], list[str], list[str]]:
    """Arrays with numbers instead of names, and the cleaned names of classes and groups."""
    arrays = read_archive(path, KNOWN)
    with valid_file(path, *VALID_FILE):
        for name in [name for name, x in arrays.items() if x.dtype.kind == "S"]:
            arrays[name] = np.char.decode(arrays[name], "utf-8", "replace")
        given = arrays.pop("class_names", np.array([], str))
        if given.dtype.kind != "U" or given.ndim != 1:
            raise mistake(path, f"class_names is {given.dtype} of shape {given.shape}", "strings in one dimension")
        classes = _to_numbers(arrays, "y", f"{path}: y", given)
        if "" in classes or len(set(classes)) < len(classes):
            raise mistake(path, f"has class names {few(classes)}", "names that differ and are not empty")
        groups = _to_numbers(arrays, "groups", f"{path}: groups", np.array([], str))
        return arrays, classes, groups if len(set(groups)) == len(groups) else []


def _to_numbers(arrays: dict[str, NDArray[Any]], start: str, where: str, order: NDArray[np.str_]) -> list[str]:
    keys = [key for key in (start, f"{start}_train", f"{start}_test") if key in arrays]
    texts = {key: arrays[key] for key in keys if arrays[key].dtype.kind == "U"}
    if not order.size:
        order = np.unique(np.concatenate([order, *(names.reshape(-1) for names in texts.values())]))
    shown, places = [clean(name, 40) for name in order.tolist()], np.argsort(order)
    for key, names in texts.items():
        numbers = places[np.searchsorted(order, names, sorter=places).clip(max=len(order) - 1)]
        if (wrong := names[order[numbers] != names]).size:
            raise mistake(where, f"{clean(wrong[0], 40)} is not in class_names", f"one of {few(shown)}")
        arrays[key] = numbers
    return shown


def to_inputs(x: NDArray[Any], layout: Layout, where: str) -> NDArray[Any]:
    """Inputs ``(N, channels, H, W)`` or ``(N, features)``, uint8 or float32.

    With ``layout`` ``auto``, two dimensions are features, three a grey image, four an image with 1 or 3 channels.
    """
    if x.dtype.kind not in "biuf":
        raise mistake(where, f"is of type {x.dtype}", "numbers")
    if x.ndim < 2 or not x.size:
        raise mistake(where, f"has shape {x.shape}", "(samples, features) or (samples, ...)")
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            bad = int(np.argwhere(~np.isfinite(x))[0][0])
            raise mistake(where, f"sample {bad} is not finite in float32", "finite numbers")
    if layout == "flat" or (layout == "auto" and x.ndim == 2):
        return x.reshape(len(x), -1)
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise mistake(where, f"has shape {x.shape}", f"3 or 4 dimensions with layout={layout}")
    if layout == "auto":
        first, last = (x.shape[axis] in (1, 3) for axis in (1, 3))
        if first == last:
            unclear = f"has shape {x.shape}, which does not show the channel axis"
            raise mistake(where, unclear, "layout=nchw, nhwc or flat")
        layout = "nchw" if first else "nhwc"
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if layout == "nhwc" else x


class Npz(Dataset):
    """A user's own arrays; ``data_cache_dir`` is the file, or the folder of ``file``."""

    class Params(Params):
        file: str | None = Field(None, description="File name in data_cache_dir; default: the only .npz there.")
        classes: int | None = Field(
            None, ge=1, description="Number of classes; default: highest label + 1; then each label from 0 must occur."
        )
        layout: Layout = Field("auto", description="Axes of x: auto, nchw, nhwc, or flat (one vector per sample).")
        test_fraction: float = Field(
            0.2, gt=0, lt=1, description="Without x_test: part of each class to use as the test part."
        )

    measured = True

    def path(self, data_dir: Path | None) -> Path:
        return only_file(data_dir, self.params.file, [".npz"], "npz")

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        self.path(data_dir)

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self.load(data_dir, download=download, seed=None)

    def load(self, data_dir: Path | None, *, download: bool, seed: int | None) -> Data:
        """Split off a missing test part, unless ``seed`` is None."""
        path = self.path(data_dir)
        arrays, classes, groups = read_named(path)
        keys = ("_train", "_test") if "x_train" in arrays else ("",)
        read = parts = self.parts(path, arrays, keys)
        if len(parts) == 1:
            rows = np.arange(len(parts[0].y)), np.zeros(0, np.int64)
            if seed is not None:
                rows = stratified(parts[0].y, test_fraction=self.params.test_fraction, seed=seed, where=str(path))
            parts = [picked(parts[0], r) for r in rows]
        train, test = parts
        if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
            forms = [f"{part.x.dtype} samples of shape {part.x.shape[1:]}" for part in parts]
            raise mistake(path, f"x_train has {forms[0]} and x_test {forms[1]}", "the same for both")
        names = self.class_names(path, np.concatenate([train.y, test.y]), classes)
        mean, std = moments(train.x)
        return Data(train, test, names, mean=mean, std=std, fingerprint=digest(read, names), group_names=groups)

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        path = self.path(data_dir)
        arrays, classes, groups = read_named(path)
        if "x_test" not in arrays or "x_train" in arrays:
            return super().load_test(data_dir, download=download, seed=seed)
        (test,) = self.parts(path, arrays, ("_test",))
        mean, std = moments(test.x)
        names = self.class_names(path, test.y, classes)
        return Data(Arrays(test.x[:0], test.y[:0]), test, names, mean=mean, std=std, group_names=groups)

    def splits_off(self, data_dir: Path | None) -> bool:
        return "x_test" not in read_archive(self.path(data_dir), ["x_test"])

    def class_names(self, path: Path, labels: NDArray[np.int64], named: list[str]) -> list[str]:
        """Names of all classes: ``named``, or numbers. Raise LabelSkewError for other ``labels`` ``(N,)``."""
        seen, classes = np.unique(labels), len(named) or self.params.classes
        if named and self.params.classes not in (None, classes):
            differ = f"names {counted(len(named), 'class', 'classes')}, data_args.classes is {self.params.classes}"
            raise mistake(path, differ, "an array class_names of them all")
        if classes is not None and seen[-1] >= classes:
            source = f"{classes} class_names" if named else f"data_args.classes {classes}"
            raise mistake(path, f"has label {seen[-1]}", f"labels from 0 to {classes - 1} with {source}")
        if classes is None and len(seen) != seen[-1] + 1:
            gap = int(np.setdiff1d(np.arange(len(seen) + 1), seen)[0])
            problem = f"the labels go up to {seen[-1]}, but no sample has label {gap}"
            use = f"labels from 0 to {len(seen) - 1} for the {len(seen)} classes, or set data_args.classes"
            raise mistake(path, problem, use)
        return named or [str(c) for c in range(classes or len(seen))]

    def parts(self, path: Path, arrays: dict[str, NDArray[Any]], keys: Sequence[str]) -> list[Arrays]:
        needed = [f"{name}{key}" for key in keys for name in "xy"]
        if missing := [name for name in needed if name not in arrays]:
            with zipfile.ZipFile(path) as archive:
                available = few([name.removesuffix(".npy") for name in archive.namelist()])
            got = f"has no {', '.join(missing)} (it has {available or 'nothing'})"
            raise mistake(path, got, "x and y, or x_train, y_train, x_test and y_test")
        return [self.part(path, arrays, key) for key in keys]

    def part(self, path: Path, arrays: dict[str, NDArray[Any]], key: str) -> Arrays:
        x = to_inputs(arrays[f"x{key}"], self.params.layout, f"{path}: x{key}")
        y, groups, where = arrays[f"y{key}"], arrays.get(f"groups{key}"), f"{path}: y{key}"
        if y.dtype.kind not in "iu" or y.ndim != 1:
            raise mistake(
                where, f"is {y.dtype} of shape {y.shape}", "a one-dimensional array of integers or class names"
            )
        if len(y) != len(x):
            raise LabelSkewError(f"{where}: has {len(y)} labels for {len(x)} samples; give one label for each sample")
        if y.min() < 0 or y.max() >= 2**63:
            raise mistake(where, f"has label {y.min() if y.min() < 0 else y.max()}", "labels from 0")
        if groups is not None and (groups.dtype.kind not in "iu" or groups.shape != y.shape):
            got = f"groups{key} is {groups.dtype} of shape {groups.shape}"
            raise mistake(path, got, f"{len(y)} integers or strings, one for each sample")
        return Arrays(x, y.astype(np.int64), None if groups is None else groups.astype(np.int64))
