import pytest
from error_messages import message
from recipe_texts import text_with

from fl_labelskew_plugins.recipe import parse


@pytest.mark.parametrize(
    ("optimizer", "override", "line"),
    [
        ("FedDC", "client_optimizer=adam", "adam cannot be used with federated_optimizer FedDC; allowed: sgd"),
        ("adam", "server_momentum=0.9", "server_momentum has no effect with adam; use sgd, or 0"),
        ("adam", "server_lr=1e39", "train_args.server_lr: 1e+39 is out of range; allowed: numbers up to 1e+30"),
        ("adam", "server_optimizer=adamw", "'adamw' is unknown; allowed: sgd, adam, adagrad; did you mean adam?"),
        ("Mime", "momentum=0.9", "train_args.momentum: 0.9 cannot be used with federated_optimizer Mime, "),
        ("SCAFFOLD", "client_optimizer=adam", "adam cannot be used with federated_optimizer SCAFFOLD; allowed: sgd"),
        ("SCAFFOLD", "fedprox_mu=1", "train_args.fedprox_mu: unknown key; allowed: federated_optimizer, "),
    ],
)
def test_refused_combinations(optimizer, override, line):
    keys = {"federated_optimizer": optimizer}
    if optimizer == "adam":
        keys = {"federated_optimizer": "FedOpt", "server_optimizer": "adam"}
    text = text_with(train_args=keys)
    assert line in message(lambda: parse.parse(text, overrides=[f"train_args.{override}"]))


def test_protected_uploads_exclude_optimisers_that_send_more():
    overrides = ["train_args.federated_optimizer=SCAFFOLD", "method_args.method=fedrs", "method_args.upload_clip=1.0"]
    line = "SCAFFOLD sends more than weights, but the method's protection of uploads covers only weights"
    assert line in message(lambda: parse.parse(text_with(), overrides=overrides))
