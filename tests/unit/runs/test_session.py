import json

import numpy as np
import torch
from error_messages import message
from fl_labelskew_registry import Arrays, Data, RunError
from recipe_texts import text_with

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.front.start import describe
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.plugins import from_objects
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Rounds


def built(*overrides, **objects):
    text = text_with(train_args={"momentum": 0.9}, device_args={"threads": 1})
    return session.build(parse.parse(text, overrides=["method_args.method=fedshift", *overrides], **objects))


def test_data_and_indices_are_stored_once():
    x, y = np.random.default_rng(0).integers(0, 9, (60, 1, 4, 4), np.uint8), np.arange(60) % 3
    given = from_objects(dataset=Data(Arrays(x, y), Arrays(x[:6].copy(), y[:6]), ["a", "b", "c"]))
    made = built(objects=given)
    assert made.trainer.train.x.data_ptr() == x.ctypes.data
    assert made.trainer.indices[0].data_ptr() == made.clients.train.indices.ctypes.data
    assert made.trainer.indices[9].tolist() == made.clients.train[9].tolist()
    assert made.trainer.indices.get(10) is None
    assert made.trainer.indices.keys() == set(range(10))


def test_a_session_has_the_settings_of_the_recipe_and_its_seed_determines_weights_and_partition():
    a, b, c = built(), built(), built("common_args.random_seed=1")
    assert all(torch.equal(a.start[k], b.start[k]) for k in a.start)
    assert a.clients.digest == b.clients.digest != c.clients.digest
    assert not torch.equal(a.start["classifier.weight"], c.start["classifier.weight"])
    assert a.trainer.settings.momentum == 0.9


def grouped(folder, *overrides, shift=0.0):
    x, y = np.random.default_rng(0).random((60, 4)) + shift, np.arange(60) % 3
    np.savez(folder / "d.npz", x=x, y=y, groups=np.array(["north", "south", "coast"]).repeat(20))
    changes = ["data_args.dataset=npz", "train_args.client_num_in_total=3", "partition_args.partition_method=natural"]
    return built(f"data_args.data_cache_dir={folder}", *changes, *overrides)


def test_a_run_is_not_resumed_with_other_samples(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    Record(grouped(tmp_path), folder, Progress(), resume=False)
    assert len(json.loads((folder.path / "environment.json").read_text())["data"]) == 32
    Record(grouped(tmp_path), folder, Progress(), resume=True)
    other = grouped(tmp_path, shift=0.5)  # with the same partition
    line = "the samples differ from the run's; use the original data set"
    assert line in message(lambda: Record(other, folder, Progress(), resume=True))


def test_clients_equal_to_groups_are_shown_by_name(tmp_path):
    made = grouped(tmp_path)
    assert [made.trainer.name(k) for k in range(3)] == ["client coast", "client north", "client south"]
    assert built().trainer.name(3) == "client 3"
    assert "3 clients of 15 to 17 samples and 3 classes (natural: coast, north, south)" in describe(made)
    broken = LocalResult({"no": torch.zeros(1)}, {}, {}, {})
    RunFolder(tmp_path / "run").create()
    rounds = Rounds(Record(made, RunFolder(tmp_path / "run"), Progress(), resume=False))
    line = message(lambda: rounds.server.check(1, 0, broken), kind=RunError)
    assert line.startswith("round 1: upload of client north ")
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["clients"] == ["coast", "north", "south"]


def test_a_recipe_sets_mean_and_std(tmp_path):
    plain, given = grouped(tmp_path), grouped(tmp_path, "data_args.mean=[1, 2, 3, 4]", "data_args.std=[2, 2, 2, 2]")
    assert given.data == plain.data  # the samples are the same
    index = torch.arange(5)
    x = plain.trainer.train.x[index]
    expected = (x - torch.tensor([1.0, 2.0, 3.0, 4.0])) / 2
    torch.testing.assert_close(given.trainer.train.inputs(index), expected)
    own = grouped(tmp_path, "data_args.mean=data")
    torch.testing.assert_close(own.trainer.train.inputs(index), plain.trainer.train.inputs(index))
    line = "data_args.mean: imagenet: 3 numbers for samples of 4 channels; use "
    assert message(lambda: grouped(tmp_path, "data_args.mean=imagenet")).startswith(line)
