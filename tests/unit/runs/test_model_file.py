import json
from pathlib import Path

import pytest
import torch
from error_messages import message
from recipe_texts import text_with
from safetensors import safe_open
from safetensors.torch import save_file

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import model_file, session

TABLE = {"label": "kind", "group": None, "missing": "mean", "features": [{"name": "a"}, {"name": "a"}]}


@pytest.fixture(scope="module")
def made():
    return session.build(parse.parse(text_with()))


@pytest.fixture
def metadata(made):
    return model_file.about(made, round=3).model_dump(mode="json")


def written(file, text):
    save_file({"w": torch.ones(2)}, file, {model_file.KEY: text if isinstance(text, str) else json.dumps(text)})
    return file


def test_a_written_file_is_read_back_with_identical_bytes(made, tmp_path):
    said = model_file.about(made, round=2, client=1, client_name="north")
    for name in ("a", "b"):
        model_file.save({"w": torch.ones(2)}, tmp_path / name, said)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    about, weights = model_file.read(tmp_path / "a")
    assert about == said
    assert weights["w"].tolist() == [1, 1]
    assert about.mean == [0.3053]
    assert (about.input_shape, about.dtype, about.picture) == ([1, 8, 8], "float32", None)
    assert (about.network, about.round, about.client, about.client_name) == ("mlp", 2, 1, "north")
    with safe_open(tmp_path / "a", "pt") as file:
        assert [*file.metadata()] == [model_file.KEY]


def test_the_hash_covers_everything_that_affects_numbers():
    def hashed(*overrides):
        return model_file.recipe_hash(parse.parse(text_with(), source=Path("x.yaml"), overrides=overrides))

    same = ("data_args.data_cache_dir=/data", "tracking_args.run_dir=there", "comm_args.backend=MPI")
    assert hashed(*same, "comm_args.secure_bits=16") == hashed()  # of sums that are not taken
    assert len({hashed(), hashed("method_args.mu1=0.2"), hashed("common_args.random_seed=1")}) == 3
    sums = "comm_args.secure_aggregation=true"
    assert len({hashed(), hashed(sums), hashed(sums, "comm_args.secure_bits=16")}) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "has format 2, but this version supports at most 1; use a newer fl-labelskew-plugins"),
        ({"format": 0}, "invalid metadata: format: 0 is out of range"),
        ({"format": True}, "its metadata are damaged; use the original file"),
        ({"format": "1"}, "are damaged"),
        ({"more": 1}, "invalid metadata: more: unknown key; allowed: format, network"),
        ({"x\x1b[2K": 1}, "invalid metadata: x?[2K: unknown key"),
        ({"round": 0}, "invalid metadata: round: 0 is out of range; allowed: an integer of at least 1"),
        ({"input_shape": [10**5] * 2}, "input_shape: [100000, 100000]: too many numbers per sample; allowed: at most"),
        ({"input_shape": []}, "input_shape: [] has the wrong length"),
        ({"class_names": []}, "class_names: [] has the wrong length"),
        ({"std": [0.0]}, "std: item 1: 0.0 is out of range"),
        ({"mean": [0.1, 0.2]}, "mean and std have different lengths; allowed: 1 numbers, 1 or none"),
        ({"dtype": "float64"}, "dtype: 'float64' is unknown; allowed: uint8, float32"),
        ({"recipe": "x"}, "recipe: 'x' has the wrong form"),
        ({"client": -1}, "client: -1 is out of range"),
        ({"table": TABLE}, "table is not the encoding of samples of shape [1, 8, 8]"),
        ({"table": TABLE, "input_shape": [2]}, "table is not the encoding of samples of shape [2]"),
        ({"table": {**TABLE, "missing": "guess"}}, "invalid metadata: table"),
        ({"table": TABLE | {"means": [0.0]}, "input_shape": [4]}, "table is not the encoding of samples of shape [4]"),
    ],
)
def test_impossible_values_are_one_line(tmp_path, metadata, change, says):
    file = written(tmp_path / "x.safetensors", metadata | change)
    line = message(lambda: model_file.read(file))
    assert line.startswith(f"{file}: ")
    assert says in line
    assert model_file.read_metadata(file) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"format": 1, "x": "' + "x" * 2**24 + '"}'])
def test_damaged_text_is_one_line(tmp_path, text):
    file = written(tmp_path / "x.safetensors", text)
    assert message(lambda: model_file.read(file)).startswith(f"{file}: its metadata are damaged; use ")


def test_broken_files_are_one_line(tmp_path, metadata):
    file = tmp_path / "x.safetensors"
    assert "no such file; use a model.safetensors of a run" in message(lambda: model_file.read(file))
    assert "is not a valid .safetensors file" in message(lambda: model_file.read(tmp_path))
    for content in (b"", b"words", written(file, metadata).read_bytes()[:-3]):
        file.write_bytes(content)
        assert "is not a valid .safetensors file (" in message(lambda: model_file.read(file))
    save_file({"w": torch.ones(2)}, file)
    line = message(lambda: model_file.read(file))
    assert "has no metadata about its network; use a model.safetensors of a run" in line


def test_names_are_clean(tmp_path, metadata):
    file = written(tmp_path / "x.safetensors", metadata | {"class_names": ["a\x1b[31m", "b\n"], "method": "\x07"})
    about, _ = model_file.read(file)
    assert (about.class_names, about.method) == (["a?[31m", "b?"], "?")
