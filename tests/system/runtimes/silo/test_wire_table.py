"""What leaves a silo, read off the wire: a proxy between silos and server keeps every byte that passes."""

import pytest
import torch
from federations import finished
from safetensors.torch import load_file
from wiretap import messages, watched

from fl_labelskew_plugins.methods.fedshift import smoothed_counts
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runtimes.silo import facts
from fl_labelskew_plugins.runtimes.transport import Kind


@pytest.fixture
def travelled(federation):
    """Run a federation through a proxy; all that silos sent, and the proxy."""

    def run(*overrides, silo=()):
        federation.overrides = list(overrides)
        server, proxy = watched(federation)
        finished(server, *(federation.silo(rank, *silo) for rank in (1, 2, 3)))
        sent = [message for stream in proxy.sent for message in messages(stream)]
        assert {header.sender for _, header, _, _ in sent} == {1, 2, 3}
        return sent, proxy

    return run


def names(sent, kind):
    return {name for other, _, _, tensors in sent if other == kind for name in tensors}


WEIGHTS = {f"model/{layer}.{part}" for layer in ("body.1", "classifier") for part in ("weight", "bias")}
EXTRA = {
    **dict.fromkeys(("map", "fedphp"), (set(), set())),  # their private models stay
    "fedshift": (set(), {"smoothed"}),
    "fedmr": ({"contribution/sums", "contribution/counts"}, set()),
    "fd with SCAFFOLD": (
        {f"contribution/{name}" for name in ("outputs", "held")}
        | {name.replace("model/", "contribution/optimizer/") for name in WEIGHTS},
        set(),
    ),
}


@pytest.mark.parametrize("mixture", EXTRA)
def test_only_weights_and_announced_tensors_leave_a_silo(mixture, travelled, federation):
    method, _, optimizer = mixture.partition(" with ")
    mixed = [f"method_args.method={method}", f"train_args.federated_optimizer={optimizer or 'FedAvg'}"]
    sent, proxy = travelled("train_args.comm_round=2", *mixed)
    contribution, opening = EXTRA[mixture]
    weights = names(sent, Kind.UPLOAD) - contribution
    assert {name.partition("/")[0] for name in weights} == {"model"}
    assert {name.removeprefix("model/") for name in weights} == federation.weights().keys()
    assert names(sent, Kind.UPLOAD) - weights == contribution
    assert names(sent, Kind.OPENING) == opening
    assert {kind for kind, *_ in sent} == {Kind.HELLO, Kind.UPLOAD, Kind.FINISH} | (
        {Kind.OPENING} if opening else set()
    )
    assert names(sent, Kind.FINISH) == set()
    for kind, _, meta, tensors in sent:
        if kind == Kind.HELLO:
            assert meta.keys() == {"samples", "input_shape", "num_classes", "process", "round"}
            assert not tensors
        else:
            assert meta == {}  # no measure
    # and in no other form: neither the samples nor where they lie, nor the silo's secret
    recipe = recipes.load(federation.recipe, federation.overrides)
    bytes_sent = b"".join(bytes(stream) for stream in proxy.sent)
    for client in range(3):
        data = facts.load(recipe, client).data
        for sample in data.train.x:
            assert sample.tobytes() not in bytes_sent
        assert data.train.y.tobytes() not in bytes_sent
        kept = (federation.folder / f"silo-{client + 1}" / "secret").read_text()
        assert kept.encode() not in bytes_sent
        assert bytes.fromhex(kept) not in bytes_sent
    assert str(federation.folder).encode() not in bytes_sent
    # FedPHP's first private model is the upload; from the second round on no private model is
    for file in federation.folder.glob("silo-*/*/states/round000001.safetensors"):
        for name, tensor in load_file(file).items():
            # FD keeps a copy of its tensors, and the number of the round
            if f"contribution/{name}" not in contribution and name != "round":
                assert tensor.numpy().tobytes() not in bytes_sent, name


def test_a_silo_may_keep_its_prototypes_and_may_send_its_measures(travelled, federation):
    choice = ["--set", "comm_args.send_contributions=false", "--set", "comm_args.send_measures=true"]
    sent, _ = travelled("method_args.method=fedmr", "train_args.comm_round=2", silo=choice)
    assert not any(name.startswith("contribution/") for name in names(sent, Kind.UPLOAD))
    measures = [meta for kind, _, meta, _ in sent if kind == Kind.UPLOAD]
    assert all(meta.keys() == {"loss_terms", "personalised"} for meta in measures)
    assert all(line["personalised_accuracy"] > 0 for line in federation.lines())


def test_counts_leave_a_silo_with_its_own_noise(travelled, federation):
    noise = ["--set", "method_args.count_noise=20"]
    sent, _ = travelled("method_args.method=fedshift", "train_args.comm_round=1", silo=noise)
    recipe = recipes.load(federation.recipe, federation.overrides)
    true = [facts.load(recipe, client) for client in range(3)]
    for kind, header, _, tensors in sent:
        if kind == Kind.OPENING:
            labels = true[header.sender - 1].data.train.y
            counts = torch.tensor([int((labels == c).sum()) for c in range(10)])
            assert not torch.equal(tensors["smoothed"], smoothed_counts(counts, smoothing=1.0))
