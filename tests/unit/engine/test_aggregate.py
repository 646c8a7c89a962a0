import re
from functools import partial

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Method, RunError

from fl_labelskew_plugins.engine.aggregate import (
    WeightedMean,
    check_extra,
    check_result,
    check_terms,
    check_upload,
    class_weights,
    client_weights,
    weighted_mean,
)
from fl_labelskew_plugins.methods.fedlc import FedLC
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer


def test_client_weights_by_hand():
    assert client_weights([1, 3], "samples", 8) == [0.25, 0.75]
    assert client_weights([1, 3], "uniform", 8) == [0.5, 0.5]
    assert client_weights([1, 3], "population", 8) == [0.125, 0.375]
    assert client_weights([5, 7, 9], "population", 21) == client_weights([5, 7, 9], "samples", 21)
    assert client_weights([1, 9], "population", 8) == [0.1, 0.9]  # a silo that joined late claims more than all others


def test_mean_equals_a_loop_and_changes_no_upload():
    torch.manual_seed(1)
    uploads = [{"a": torch.randn(3, 4), "b": torch.randn(2)} for _ in range(4)]
    copies = [{k: v.clone() for k, v in u.items()} for u in uploads]
    weights = [0.1, 0.2, 0.3, 0.4]
    mean = weighted_mean(zip(weights, uploads, strict=True), uploads[0])
    for key in ("a", "b"):
        naive = sum(w * u[key] for w, u in zip(weights, copies, strict=True))
        torch.testing.assert_close(mean[key], naive)
        for upload, copy in zip(uploads, copies, strict=True):
            assert torch.equal(upload[key], copy[key])


def test_the_mean_is_the_same_in_pieces(monkeypatch):
    torch.manual_seed(3)
    images = torch.randn(2, 5, 3, 3)
    uploads = [{"a": torch.randn(300), "b": images * i, "steps": torch.tensor(i)} for i in range(1, 4)]
    uploads[1]["b"] = uploads[1]["b"].contiguous(memory_format=torch.channels_last)  # of another writer
    shares = [(0.2, uploads[0]), (0.3, uploads[1]), (0.5, uploads[2])]
    whole = weighted_mean(shares, uploads[0])
    monkeypatch.setattr("fl_labelskew_plugins.tensors.PIECE", 64)
    pieces = weighted_mean(shares, uploads[0])
    for key, value in whole.items():
        assert torch.equal(value, pieces[key])
    assert pieces["b"].stride() == uploads[0]["b"].stride()
    check_upload(uploads[2], uploads[0], where="x")
    uploads[2]["a"][-1] = float("nan")
    assert "a is not finite" in message(lambda: check_upload(uploads[2], uploads[0], where="x"), kind=RunError)


def test_integers_stay_integers():
    def mean(*values, old=2):
        name = "bn.num_batches_tracked"
        uploads = [(1 / len(values), {name: torch.tensor(value)}) for value in values]
        return weighted_mean(uploads, {name: torch.tensor(old)})[name]

    assert mean(2**53 + 4, 2**53 + 4, old=2**53).dtype == torch.int64
    assert mean(2**53 + 4, 2**53 + 4, old=2**53) == 2**53 + 4
    assert mean(3, 6) == 4
    assert mean(3, -(10**6)) == 2  # a counter never decreases
    assert mean(2**62, 3) == 2 + 2**20  # and a client cannot freeze the statistics of others


def test_integers_other_than_counters_keep_the_servers_value():
    """The mean of indices is not an index: one upload made the test of the model fail."""
    old = {"order": torch.tensor([1, 0])}
    assert weighted_mean([(0.5, {"order": torch.tensor([1, 300])})] * 2, old)["order"].tolist() == [1, 0]


def test_class_weights_are_the_papers():
    counts = torch.tensor([[2, 0, 0], [6, 4, 0]])
    torch.testing.assert_close(class_weights(counts, 0.0), torch.tensor([[0.25, 0.0, 0.0], [0.75, 1.0, 0.0]]).double())
    torch.testing.assert_close(
        class_weights(counts, 2.0), torch.tensor([[4 / 12, 0.25, 0.5], [8 / 12, 0.75, 0.5]]).double()
    )


@pytest.mark.parametrize("rest", [0.0, 0.25])
def test_proxies_are_averaged_per_class_and_kept_for_missing_classes(rest):
    counts = torch.tensor([[2, 0, 0], [6, 4, 0]])
    old = {"classifier.weight": torch.full((3, 2), 9.0), "body": torch.tensor([8.0])}
    rows = class_weights(counts, 0.0)
    mean = WeightedMean(old)
    share = (1 - rest) / 2
    mean.add({"classifier.weight": torch.full((3, 2), 4.0), "body": torch.tensor([2.0])}, share, rows[0])
    mean.add({"classifier.weight": torch.full((3, 2), 8.0), "body": torch.tensor([4.0])}, share, rows[1])
    result = mean.result(rest, (1 - rows.sum(0)).round())
    assert result["classifier.weight"].tolist() == [[7.0, 7.0], [8.0, 8.0], [9.0, 9.0]]
    assert result["body"].item() == 6 * share + rest * 8


@pytest.mark.parametrize(
    ("upload", "words"),
    [
        ({"v": torch.zeros(2)}, "differ in the tensors"),
        ({"w": torch.zeros(3)}, "expected (2,)"),
        ({"w": torch.zeros(2).double()}, "float64"),
        ({"w": torch.tensor([0.0, float("nan")])}, "not finite"),
        ({"w": torch.tensor([float("inf"), -float("inf")])}, "not finite"),
    ],
)
def test_bad_uploads_are_refused_in_one_line(upload, words):
    with pytest.raises(RunError, match=rf"^round 7: upload of client 3\b.*{re.escape(words)}.*\Z"):
        check_upload(upload, {"w": torch.zeros(2)}, where="round 7: upload of client 3")


def test_valid_uploads_pass():
    # the sum of large values overflows float32
    check_upload({"w": torch.full((4,), 3e38)}, {"w": torch.zeros(4)}, where="here")
    check_extra({"counts": torch.full((4,), 3e38)}, {"counts": (4,)}, where="here")
    # a client may send less than announced
    check_extra({}, {"counts": (2,)}, where="here")
    check_extra({"counts": torch.tensor([0, 2])}, {"counts": (2,), "prototypes": (2, 5)}, where="here")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"features\x1b[2J": torch.zeros(2)}, "does not announce: features?[2J"),
        ({"counts": torch.zeros(3)}, "of shape (3,), expected (2,)"),
        ({"counts": torch.tensor([0.0, float("nan")])}, "counts is not finite"),
        ({"counts": torch.tensor([3, -1])}, "negative integers"),
        ({"counts": torch.zeros(2).half()}, "counts is torch.float16, expected torch.float32 or torch.float64 or"),
        ({"w": torch.zeros(2, dtype=torch.int64)}, "w is torch.int64, expected torch.float32"),
    ],
)
def test_unannounced_tensors_are_refused_in_one_line(tensors, words):
    shapes = {"counts": (2,), "prototypes": (2, 5), "w": (2,)}
    with pytest.raises(RunError, match=rf"^round 7: upload of client 3\b.*{re.escape(words)}.*\Z") as error:
        check_extra(tensors, shapes, where="round 7: upload of client 3", dtypes={"w": [torch.float32]})
    assert str(error.value).isprintable()


def test_a_non_finite_loss_term_is_reported_unless_the_weights_are_non_finite():
    keys = "a smaller train_args.learning_rate, or another method_args.tau"
    with pytest.raises(RunError) as error:
        check_terms({"a": 1.0, "b": float("nan")}, {"w": torch.zeros(2)}, FedLC(), where="round 2: client 0")
    assert str(error.value) == f"round 2: client 0: loss term b is nan, training diverged; use {keys}"
    check_terms({"a": float("nan")}, {"w": torch.tensor([0.0, float("inf")])}, FedLC(), where="")
    check_terms({"a": 1.0}, {"w": torch.zeros(2)}, FedLC(), where="")


def test_negative_variances_of_batch_normalisation_are_refused():
    """With them the features of all other clients would be NaN, and their uploads would be refused."""
    old = {"norm.running_var": torch.ones(2), "norm.running_mean": torch.zeros(2)}
    upload = {"norm.running_var": torch.tensor([1.0, 0.0]), "norm.running_mean": torch.full((2,), -1.0)}
    check = partial(check_result, upload, {}, old, {}, Method(), FedAvgOptimizer(), where="upload of client 2")
    check()
    upload["norm.running_var"][1] = -5.0
    assert message(check, kind=RunError) == "upload of client 2: norm.running_var has negative variances"
