"""LEAF's FEMNIST and Shakespeare: JSON files by user, from LEAF's ``preprocess.sh``.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, https://arxiv.org/abs/1812.01097.

``train/*.json`` and ``test/*.json`` (also below ``data/``) contain ``users``, ``num_samples`` and ``user_data[user]``
with ``x`` and ``y``. Each user is a group. Test samples of users without training samples stay in the test part.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import params, seeds
from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import readable, valid_file
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.machine.files import open_regular

UserArrays = tuple[NDArray[np.uint8], NDArray[np.int64]]
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's vocabulary of 80 characters (its ``models/utils/language_utils.py``)."""
LENGTH = 80  # characters per sample
SONNET = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate:"
_TABLE = np.full(128, len(LETTERS), np.uint8)
_TABLE[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


class Leaf(Dataset):
    """LEAF's files."""

    name: ClassVar[str]
    class_names: ClassVar[list[str]]
    mean: ClassVar[tuple[float, ...]] = (0.0,)
    std: ClassVar[tuple[float, ...]] = (1.0,)

    class Params(params.Params):
        users: int | None = Field(None, ge=1, description="Number of users, drawn with the seed; default: all.")

    def samples(self, x: list[Any], y: list[Any]) -> UserArrays:
        """One user's samples. Raise ValueError with the rest of a sentence that begins with the user's name."""
        raise NotImplementedError

    def files(self, data_dir: Path | None, part: str) -> list[Path]:
        if data_dir is None:
            use = f"LEAF's folder with train/*.json and test/*.json, from {self.source}"
            raise LabelSkewError(f"data set {self.name}: data_args.data_cache_dir is not set; set it to {use}")
        for folder in (data_dir / part, data_dir / "data" / part):
            with readable(str(folder)):
                names = sorted(os.listdir(folder)) if folder.is_dir() else []
            if files := [folder / name for name in names if name.endswith(".json") and name[0] != "."]:
                return files
        problem = f"no {part}/*.json in {data_dir}"
        raise LabelSkewError(f"data set {self.name}: {problem}; to write them, use {self.source}")

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        for part in fakes.PARTS:
            self.files(data_dir, part)

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        train, test = (self.read(self.files(data_dir, part)) for part in fakes.PARTS)
        users = [sorted(part.items()) for part in (train, test)]
        arrays = [Arrays(*samples) for part in users for _, samples in part]
        fingerprint = digest(arrays, [name for part in users for name, _ in part])
        train, test = ({user: xy for user, xy in part.items() if len(xy[1])} for part in (train, test))
        names = sorted(train)
        wanted = self.params.users or max(len(names), 1)
        if wanted > len(names):
            few = f"only {len(names)} users have training samples; {wanted} are needed"
            raise LabelSkewError(f"data set {self.name}: {data_dir}: {few}")
        drawn = seeds.numpy_generator(seed, "leaf users").permutation(len(names))
        for k in drawn[wanted:]:
            del train[names[k]]
            test.pop(names[k], None)
        if not test:
            raise LabelSkewError(f"data set {self.name}: the test part has no samples; add at least one")
        group_of = {user: k for k, user in enumerate(sorted(train.keys() | test.keys()))}

        def part(users: dict[str, UserArrays]) -> Arrays:
            x, y = (np.concatenate([users[name][axis] for name in sorted(users)]) for axis in (0, 1))
            groups = np.concatenate([np.full(len(users[name][1]), group_of[name], np.int64) for name in sorted(users)])
            return Arrays(x, y, groups)

        return Data(part(train), part(test), list(self.class_names), self.mean, self.std, fingerprint=fingerprint)

    def read(self, files: Iterable[Path]) -> dict[str, UserArrays]:
        users: dict[str, UserArrays] = {}
        origin: dict[str, Path] = {}
        for path in files:
            for user, samples in self.read_file(path).items():
                if user in users:
                    duplicate = f"user {user!r} is also in {origin[user]}"
                    raise mistake(path, duplicate, "the files of one run of LEAF's preprocess.sh")
                users[user], origin[user] = samples, path
        return users

    def read_file(self, path: Path) -> dict[str, UserArrays]:
        with (
            valid_file(path, "JSON file", "one that LEAF has written"),
            open(path, encoding="utf-8", opener=open_regular) as stream,
        ):
            # converted user by user, to limit memory; the cache of pixel values makes this three times as fast
            content = json.load(stream, object_hook=self._converted, parse_float=lru_cache(512)(float))
        keys = ("users", "num_samples", "user_data")
        if not isinstance(content, dict) or any(key not in content for key in keys):
            raise mistake(path, "is not a file of LEAF", f"a mapping with {', '.join(keys)}")
        users, sizes, data = (content[key] for key in keys)
        lists = isinstance(users, list) and isinstance(sizes, list) and isinstance(data, dict)
        if not lists or len(users) != len(sizes) or sorted(map(str, users)) != sorted(data):
            wrong = "users, num_samples and user_data do not match"
            raise mistake(path, wrong, "lists of names and of sizes, and a mapping of the same names")
        kept: dict[str, UserArrays] = {}
        for user, size in zip(users, sizes, strict=True):
            samples = data[str(user)]  # or an error message of _converted
            if isinstance(samples, tuple) and len(samples[1]) != size:
                samples = f"has {len(samples[1])} samples, but num_samples is {size}"
            if not isinstance(samples, tuple):
                wrong = samples if isinstance(samples, str) else "has no lists x and y"
                raise LabelSkewError(f"{path}: user {user!r} {wrong}; write the file again with LEAF")
            kept[str(user)] = samples
        return kept

    def _converted(self, value: dict[str, Any]) -> Any:
        """A user's samples, or an error message; other mappings unchanged."""
        x, y = value.get("x"), value.get("y")
        if not isinstance(x, list) or not isinstance(y, list):
            return value
        if len(x) != len(y):
            return f"has {len(x)} x and {len(y)} y"
        try:
            return self.samples(x, y)
        except ValueError as error:
            return str(error)

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write users like LEAF's ``-t sample``, with every tenth sample of a user in test."""
        total = samples or 1000
        if total < 4:
            raise mistake(f"data set {self.name}", f"{total} samples are too few", "at least 4, for two users")
        rng, users = seeds.numpy_generator(seed, "fake users"), min(20, total // 2)
        sizes = 2 + rng.multinomial(total - 2 * users, np.full(users, 1 / users))
        made = {f"user_{k:02d}": xy for k, xy in enumerate(self.fake_users(sizes.tolist(), rng))}
        for part in fakes.PARTS:
            data = {}
            for user, xy in made.items():
                rows = [i for i in range(len(xy[1])) if (i % 10 == 0) == (part == "test")]
                data[user] = {axis: [values[i] for i in rows] for axis, values in zip("xy", xy, strict=True)}
            content = {"users": list(data), "num_samples": [len(xy["y"]) for xy in data.values()], "user_data": data}
            (out / part).mkdir(parents=True)
            path = out / part / f"all_data_0_keep_0_{part}_9.json"  # LEAF's own name
            path.write_text(json.dumps(content), encoding="utf-8")

    def fake_users(self, sizes: list[int], rng: np.random.Generator) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
        """``x`` and ``y`` of fake users with ``sizes`` samples."""
        raise NotImplementedError


class FEMNIST(Leaf):
    """LEAF's FEMNIST: 62 classes, a group per writer; samples are ``(1, 28, 28)`` uint8, 255 for LEAF's 1.0."""

    name = "femnist"
    source = "LEAF, https://github.com/TalwalkarLab/leaf, data/femnist: preprocess.sh -s niid --sf 1.0 -t sample (GBs)"
    class_names: ClassVar[list[str]] = [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]

    def samples(self, x: list[Any], y: list[Any]) -> UserArrays:
        if not y:
            return np.empty((0, 1, 28, 28), np.uint8), np.empty(0, np.int64)
        pixels = _numeric(x, "x")
        if pixels.ndim != 2 or pixels.shape[1] != 784:
            raise ValueError(f"has x of shape {pixels.shape} instead of ({len(y)}, 784)")
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # false for NaN too
            raise ValueError(f"has pixels from {pixels.min():g} to {pixels.max():g} instead of 0 to 1")
        labels = _numeric(y, "y")
        if labels.ndim != 1 or labels.dtype.kind != "i" or not 0 <= labels.min() <= labels.max() <= 61:
            wrong = labels[~np.isin(labels, range(62))].tolist() or labels.tolist()
            raise ValueError(f"has label {wrong[0]} instead of an integer from 0 to 61")
        return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, 28, 28), labels.astype(np.int64)

    def fake_users(self, sizes: list[int], rng: np.random.Generator) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
        """Writers of 25 classes each (FedRS, section 5.3)."""
        patterns = fakes.patterns(62, (1, 28, 28), rng)
        for size in sizes:
            y = rng.choice(rng.permutation(62)[:25], size)
            yield (fakes.noisy(patterns, y, rng).reshape(size, 784) / 255).tolist(), y.tolist()


class Shakespeare(Leaf):
    """LEAF's Shakespeare: predict the character after 80 others, a group per role; samples are ``(80,)`` uint8."""

    name = "shakespeare"
    source = "LEAF, https://github.com/TalwalkarLab/leaf, data/shakespeare: preprocess.sh -s niid --sf 1.0 -t sample"
    class_names: ClassVar[list[str]] = ["newline", "space", *LETTERS[2:], "other"]
    mean = ()  # not normalised
    std = ()

    def samples(self, x: list[Any], y: list[Any]) -> UserArrays:
        for name, texts, length in (("x", x, LENGTH), ("y", y, 1)):
            wrong = [text for text in texts if not isinstance(text, str) or len(text) != length]
            if wrong:
                raise ValueError(f"has {name} {json.dumps(wrong[0])[:40]} instead of text of length {length}")
        return characters(x).reshape(-1, LENGTH), characters(y).astype(np.int64)

    def fake_users(self, sizes: list[int], rng: np.random.Generator) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
        words = sorted(set(SONNET.split()))
        for size in sizes:
            role = rng.choice(words, len(words) // 3, replace=False)
            text = " " * LENGTH + " ".join(rng.choice(role, size))[:size]  # `size` words have at least `size` letters
            yield [text[i : i + LENGTH] for i in range(size)], text[LENGTH:]


def characters(texts: Iterable[str]) -> NDArray[np.uint8]:
    """Character numbers of concatenated texts; 80 for characters outside LEAF's vocabulary."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return np.where(codes < len(_TABLE), _TABLE[np.minimum(codes, len(_TABLE) - 1)], _TABLE.dtype.type(len(LETTERS)))


def _numeric(values: list[Any], name: str) -> NDArray[Any]:
    try:
        array = np.array(values)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "if":
        raise ValueError(f"has {name} that are not numbers in rows of the same length")
    return array
