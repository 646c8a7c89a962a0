import json

import numpy as np
import pytest
import torch
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record

TEXT = """\
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: mlp}
train_args: {client_num_in_total: 10, momentum: 0.9}
method_args: {method: fedshift}
device_args: {threads: 1}
"""


def built(*overrides):
    return session.build(parse.parse(TEXT, overrides=overrides))


def test_a_session_holds_what_the_recipe_says():
    made = built("train_args.client_num_per_round=4", "train_args.epochs=3")
    federation = made.federation
    assert (federation.num_clients, federation.clients_per_round, federation.epochs) == (10, 4, 3)
    assert federation.num_samples == sum(len(i) for i in made.trainer.indices.values()) == 1438
    assert federation.num_features == made.trainer.model.classifier.in_features
    assert made.trainer.settings.momentum == 0.9
    assert [int(n) for n in (made.counts > 0).sum(1)] == [2] * 10
    assert torch.get_num_threads() == 1


def test_the_seed_decides_start_weights_and_partition():
    a, b, c = built(), built(), built("common_args.random_seed=1")
    assert all(torch.equal(a.start[k], b.start[k]) for k in a.start)
    assert a.clients.digest == b.clients.digest != c.clients.digest
    assert not torch.equal(a.start["classifier.weight"], c.start["classifier.weight"])


def test_the_global_generator_is_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    built()
    assert torch.equal(torch.rand(2), expected)


def test_a_run_is_not_gone_on_with_on_other_samples(tmp_path):
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "d.npz", x=x, y=y)
    changes = [f"data_args.data_cache_dir={tmp_path}", "data_args.dataset=npz", "train_args.client_num_in_total=3"]

    def record(resume):
        return Record(built(*changes), RunFolder(tmp_path / "run"), Progress(), resume=resume)

    RunFolder(tmp_path / "run").create()
    record(resume=False)
    assert len(json.loads((tmp_path / "run" / "environment.json").read_text())["data"]) == 32
    record(resume=True)
    np.savez(tmp_path / "d.npz", x=x + 0.5, y=y)  # the same partition
    with pytest.raises(LabelSkewError, match=r"the samples are no longer those of the run; use the data set as it was"):
        record(resume=True)
