import random

import numpy as np
import pytest
import torch
from fl_labelskew_registry import catalog
from recipe_texts import text_with
from torch import nn

from fl_labelskew_plugins.engine import threads
from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session


def built(name, shape):
    return catalog.load("models", name)().build(shape, 10)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("mlp", (64,), 64 * 128 + 128 * 10),
        ("fedlc_cnn_mnist", (1, 28, 28), 24**2 * 10 * 25 + 8**2 * 20 * 250 + 320 * 50 + 50 * 10),
        # two LSTM layers of 4 gates with 256 outputs over 80 characters of 8 numbers, and the head
        ("char_lstm", (80,), 80 * 4 * 256 * ((8 + 256) + (256 + 256)) + 256 * 10),
    ],
)
def test_multiply_adds_of_a_sample(name, shape, expected):
    assert threads.multiply_adds(built(name, shape), shape) == expected


def test_multiply_adds_changes_neither_network_nor_generators():
    network = built("lenet", (1, 28, 28)).train()
    before = torch.get_rng_state()
    assert threads.multiply_adds(network, (1, 28, 28)) == pytest.approx(281_640)
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())
    assert torch.equal(before, torch.get_rng_state())
    assert threads.multiply_adds(nn.Linear(3, 2), (4,)) == 0  # it does not take such samples
    cannot_be_copied = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)))
    assert threads.multiply_adds(cannot_be_copied, (3,)) == 0


def test_suitable_gives_small_networks_one_thread():
    assert threads.suitable(built("fedlc_cnn_mnist", (1, 28, 28)), (1, 28, 28), 128) == 1
    vgg = built("vgg11", (3, 32, 32))
    assert [threads.suitable(vgg, (3, 32, 32), batch) for batch in (16, 64)] == [1, threads.THREADS]


def test_session_takes_threads_from_recipe_user_or_network(monkeypatch):
    recipe = parse.parse(text_with())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def used(set_by_caller, *overrides):
        with restored(set_by_caller):
            session.build(parse.parse(text_with(), overrides=overrides) if overrides else recipe)
            return torch.get_num_threads()

    assert used(3) == 1  # an mlp
    assert used(3, "device_args.threads=2") == 2
    monkeypatch.setattr(threads, "LARGE", 64 * 128 * 64)
    assert used(3) == threads.THREADS
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert used(3) == 3


def test_restored_brings_back_generators_and_threads_after_an_error():
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.rand(), float(torch.rand(1))
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    before = torch.get_num_threads()

    @restored(before + 1)
    def draw_and_raise():
        assert torch.get_num_threads() == before + 1
        random.random(), np.random.seed(0), torch.manual_seed(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw_and_raise()
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == expected
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("threads_each", "warned"), [(1, False), (2, True)])
def test_more_threads_than_cores_cause_a_warning(threads_each, warned, capsys):
    threads.warn_if_too_many(threads.available_cores(), threads_each)
    assert capsys.readouterr().err.startswith("warning: ") == warned


def test_tiny_values_are_taken_as_0():
    """In all threads, so that a model of tiny weights is not slow; afterwards the mode is restored."""
    tiny = torch.full((10**6,), 1e-40)
    with restored(2):
        assert not (tiny * 1).any()
        assert not torch.nn.functional.linear(tiny.reshape(1000, 1000), torch.eye(1000)).any()
    assert (tiny * 1).all()
