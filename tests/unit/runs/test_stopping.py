import pytest

from fl_labelskew_plugins.recipe.sections import Stop
from fl_labelskew_plugins.runs.stopping import reason_to_stop


def stops_after(stop, values, key="accuracy"):
    """The number of rounds after which a run stops, or None; a round with the value None has no test."""
    lines = [{"round": round} | ({} if value is None else {key: value}) for round, value in enumerate(values)]
    return next((n for n in range(len(lines) + 1) if reason_to_stop(stop, lines[:n])), None)


@pytest.mark.parametrize(
    ("stop", "values", "rounds"),
    [
        ({"patience": 2}, [0.1, 0.2, 0.3, 0.4], None),
        ({"patience": 2}, [0.5, 0.5, 0.5, 0.6], 3),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.6, 0.6], 5),
        ({"patience": 1, "min_delta": 0.1}, [0.5, 0.6, 0.65], 3),
        ({"patience": 2, "min_delta": 0.1}, [0.5, 0.55, 0.61, 0.62, 0.63], 5),  # compared with 0.5, not with 0.55
        ({"patience": 2}, [0.5, None, None, 0.4, None, 0.4], 6),
        ({"patience": 2}, [0.0, 0.0, 0.0], 3),
        ({"patience": 1}, [float("nan"), float("nan")], 1),
        ({"target": 0.9}, [0.5, 0.8999, 0.9, 0.1], 3),
        ({"target": 0.9, "patience": 1}, [0.5, 0.4, 0.9], 2),
        ({"target": 0.9}, [None], None),
    ],
)
def test_rounds_by_hand(stop, values, rounds):
    assert stops_after(Stop(**stop), values) == rounds


def test_a_loss_has_to_fall():
    assert stops_after(Stop(metric="loss", patience=2), [2.0, 1.0, 1.5, 1.0], "loss") == 4
    assert stops_after(Stop(metric="loss", target=0.5), [2.0, 0.6, 0.5], "loss") == 3
    lines = [{"round": 0, "loss": 0.25}]
    assert reason_to_stop(Stop(metric="loss", target=0.5), lines) == "loss 0.25 reaches the target 0.5"


def test_accuracy_is_the_main_measure():
    """Without a global test set, it is the clients' mean."""
    assert stops_after(Stop(target=0.9), [0.8, 0.95], "client_accuracy_mean") == 2
    assert stops_after(Stop(metric="balanced_accuracy", target=0.9), [0.95], "accuracy") is None
