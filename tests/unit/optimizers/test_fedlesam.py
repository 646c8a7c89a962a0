import pytest
from fl_labelskew_registry.contracts import Stage

from fl_labelskew_plugins.optimizers.fedlesam import FedLESAM


def make(rho, form="paper"):
    return FedLESAM(FedLESAM.Params(sam_rho=rho, lesam_form=form))


@pytest.mark.parametrize("form", ["paper", "code"])
def test_two_rounds_by_hand(world, form):
    two = world(make(0.5, form), steps=(1, 1))
    # the first round is FedAvg: client 0 goes to 0.9, client 1 stays at 1
    assert two.play() == pytest.approx(0.95)
    # the model fell, so the gradients are those of 0.95 + 0.5; client 0: 1.45, client 1: 3 * 0.45
    assert two.play() == pytest.approx(0.95 - 0.1 * (1.45 + 3 * 0.45) / 2)


def test_the_direction_is_that_since_the_client_last_took_part(world):
    two = world(make(0.5), steps=(1, 1))
    two.play(1)  # at its minimum: the model stays at 1
    two.play(0)
    assert two.at == pytest.approx(0.9)
    two.play(1)  # it received 1 before, so its gradient is that of 0.9 + 0.5
    assert two.at == pytest.approx(0.9 - 0.1 * 3 * 0.4)
    assert two.kept(1) == pytest.approx(0.9)


def test_the_direction_in_the_authors_code_is_that_of_the_last_round(world):
    two = world(make(0.5, "code"), steps=(1, 1))
    two.play(0)
    assert two.shared() == pytest.approx(-0.1)
    two.play(1)  # its first round, but the server's model fell
    assert two.at == pytest.approx(0.9 - 0.1 * 3 * 0.4)
    assert not any(name.startswith("optimizer/") for name in two.states[1])


def test_weight_decay_is_that_of_the_weights(world):
    two = world(make(0.5), steps=(1, 1), weight_decay=0.2)
    start = two.play()
    mean = (start + 0.5 + 3 * (start + 0.5 - 1)) / 2
    assert two.play() == pytest.approx(start - 0.1 * (mean + 0.2 * start))


def test_a_later_stage_starts_at_the_weights_of_the_upload(world, monkeypatch):
    """The second stage is not uploaded, and its gradient is that of the weights themselves."""
    stages = [Stage("train", 0.5), Stage("own", 0.5, upload=False)]
    two = world(make(0.5), stages=stages)
    models = []
    after = lambda method, client: models.append(float(client.model.w.detach()))  # noqa: E731
    monkeypatch.setattr(type(two.trainer.method), "after_round", after)
    start = two.play()
    upload = start - 0.1 * (start + 0.5)
    two.play()
    assert models[2] == pytest.approx(upload - 0.1 * upload)
