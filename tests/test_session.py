import pytest
import torch
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins import recipe, session
from fl_labelskew_plugins.results import RunFolder

TEXT = """\
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: mlp}
train_args: {client_num_in_total: 10, momentum: 0.9}
method_args: {method: fedshift}
device_args: {threads: 1}
"""


def built(*overrides):
    return session.build(recipe.parse(TEXT, overrides=overrides))


def test_a_session_holds_what_the_recipe_says():
    made = built("train_args.client_num_per_round=4", "train_args.epochs=3")
    federation = made.federation
    assert (federation.num_clients, federation.clients_per_round, federation.epochs) == (10, 4, 3)
    assert federation.num_samples == sum(len(i) for i in made.trainer.indices.values()) == 1438
    assert federation.num_features == made.trainer.model.classifier.in_features
    assert made.trainer.settings.momentum == 0.9
    assert [int((made.trainer.counts(k) > 0).sum()) for k in range(10)] == [2] * 10
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


def test_a_missing_gpu_is_a_line():
    with pytest.raises(LabelSkewError, match=r"device_args.gpu_ids: no GPU 99 on this machine") as error:
        built("device_args.using_gpu=true", "device_args.gpu_ids=[99]")
    assert "\n" not in str(error.value)


def test_folder_checks(tmp_path):
    RunFolder(tmp_path / "new" / "deeper").check_new()
    assert not (tmp_path / "new").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(LabelSkewError, match="is not empty"):
        RunFolder(tmp_path / "full").check_new()
