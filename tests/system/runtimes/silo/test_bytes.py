"""All bytes of whole runs in both directions: only the fields that docs/wire.md lists are sent."""

import getpass
import json
import socket

import numpy as np
import pytest
import torch
from federations import FACTS, Echo, finished
from safetensors.torch import load_file
from wire_table import FIELDS, PAGE, Wire
from wiretap import grpc_messages, messages, watched

from fl_labelskew_plugins.methods.fedshift import smoothed_counts
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runtimes.silo import facts as silos
from fl_labelskew_plugins.runtimes.transport import Kind

SIZES = {"C": 10, "d": 16}
NETWORK = {
    "body.1.weight": "F32 (16, 64)", "body.1.bias": "F32 (16,)", "classifier.weight": "F32 (10, 16)",
    "classifier.bias": "F32 (10,)",
}  # fmt: skip
WHOLE = {
    "fedmr": (
        ["FedMR", "send_measures", "per_client"], ["--set", "comm_args.send_measures=true"],
        ["validation_args.per_client=true"],
    ),
    "fedshift": (["FedShift", "proxy_aggregation: class"], [], ["train_args.proxy_aggregation=class"]),
}  # fmt: skip
# in test_classes.py and test_survey.py
ELSEWHERE = {"class names", "other class names", "turned away", "one normalisation", "survey", "survey refused"}
PRIVATE = ("ward-7", "lindqvist")


def ward(make_federation, *overrides):
    """A server with silos behind a proxy; the folder's name, and so every path, is a marker."""
    federation = make_federation(PRIVATE[0])
    federation.overrides = list(overrides)
    federation.environment = {"USER": PRIVATE[1], "LOGNAME": PRIVATE[1], "HOSTNAME": f"{PRIVATE[1]}.example.org"}
    return federation, *watched(federation)


@pytest.mark.parametrize("method", WHOLE)
def test_every_byte_of_a_run_is_listed_and_every_listed_field_occurs(method, make_federation):
    whens, silo, more = WHOLE[method]
    overrides = ["train_args.comm_round=2", f"method_args.method={method}", *more]
    federation, server, proxy = ward(make_federation, *overrides)
    finished(server, *(federation.silo(rank, *silo) for rank in (1, 2, 3)))
    assert [line["clients"] for line in federation.lines()] == [[0, 1, 2]] * 2
    wire = Wire(proxy, SIZES, NETWORK)
    wire.check(*whens)
    more = {("OPENING", "silo")} if method == "fedshift" else {("TEST", "server"), ("TESTED", "silo")}
    assert {kind for kind in wire.seen if isinstance(kind, tuple)} == more | {
        *((kind, "silo") for kind in ("HELLO", "UPLOAD", "FINISH")),
        *((kind, "server") for kind in ("WELCOME", "TRAIN", "VERDICT", "FINISH")),
    }
    recipe = recipes.load(federation.recipe, federation.overrides)
    assert wire.settings == [silos.agreed(recipe)] * 3
    says_nothing_of(proxy, federation, *secrets(federation))


def says_nothing_of(proxy, federation, *secrets):
    """No field contains these bytes, or names of folders, users and hosts."""
    machine = [word for word in (socket.gethostname(), getpass.getuser()) if len(word) > 3 and word not in PAGE]
    words = [word.encode() for word in (*PRIVATE, str(federation.folder), *machine)]
    for streams, client in ((proxy.sent, True), (proxy.received, False)):
        for stream in streams:
            content = bytes(stream) + grpc_messages(stream, client=client)  # frames may cut the marker
            assert not [word for word in (*words, *secrets) if word in content]


def secrets(federation):
    """Each silo's secret, its samples' rows and its labels, in the forms in which they might travel."""
    recipe = recipes.load(federation.recipe, federation.overrides)
    for client in range(3):
        secret = (federation.folder / f"silo-{client + 1}" / "secret").read_text()
        yield from (secret.encode(), bytes.fromhex(secret))
        data = silos.load(recipe, client).data
        for part in (data.train, data.test):
            yield from encodings(part.x, part.y, data)


def encodings(x, y, data):
    for samples in (x, (x - data.mean) / data.std if data.std is not None else x):
        for row in samples.reshape(-1, x.shape[-1]).astype(np.float32):
            if len(set(row.tolist())) > 3:  # not only zeros
                yield row.tobytes()
                yield json.dumps(row.tolist())[1:-1].encode()
    for form in (np.int64, np.int32, np.float32, np.uint8):
        yield y.astype(form).tobytes()
    yield json.dumps(y.tolist())[1:-1].encode()


def test_messages_of_a_failed_silo_and_of_a_refused_upload(make_federation):
    federation, server, proxy = ward(make_federation, "train_args.comm_round=1", "comm_args.min_clients=1")
    failing, good = federation.silo(1, "--set", "train_args.epochs=3"), federation.silo(3)
    poor = Echo(proxy.address, 2, facts=FACTS | {"process": "0" * 16}, factor=float("nan"))
    finished(server, good)
    poor.thread.join(20)
    assert failing.wait() == 2
    *_, last = failing.text.strip().splitlines()
    assert last == "error: train_args.epochs: 3 here and 2 at the server; use the server's recipe"
    line = "silo 1 stopped: train_args.epochs: 2 at the server, another value here; use the server's recipe"
    assert line in server.text
    Wire(proxy, SIZES, NETWORK).check("failed", "upload refused")
    says_nothing_of(proxy, federation)


EXTRA = {
    "map": set(),  # private models stay
    "fedphp": set(),
    "fd with SCAFFOLD": {f"contribution/{name}" for name in ("outputs", "held", *(f"optimizer/{w}" for w in NETWORK))},
}
"""Further tensors."""


@pytest.mark.parametrize("mixture", EXTRA)
def test_only_weights_and_announced_tensors_leave_a_silo(mixture, make_federation):
    method, _, optimizer = mixture.partition(" with ")
    mixed = [f"method_args.method={method}", f"train_args.federated_optimizer={optimizer or 'FedAvg'}"]
    federation, server, proxy = ward(make_federation, "train_args.comm_round=2", *mixed)
    finished(server, *federation.silos())
    sent = [message for stream in proxy.sent for message in messages(stream)]
    assert {header.sender for _, header, _, _ in sent} == {1, 2, 3}
    assert {kind for kind, *_ in sent} == {Kind.HELLO, Kind.UPLOAD, Kind.FINISH}
    for kind, _, meta, tensors in sent:
        hello = {"samples", "input_shape", "num_classes", "process", "round"}
        assert meta.keys() == (hello if kind == Kind.HELLO else set())  # no measure
        assert kind == Kind.UPLOAD or not tensors
    names = {name for *_, tensors in sent for name in tensors}
    assert names == {f"model/{name}" for name in NETWORK} | EXTRA[mixture]
    # and in no other form: neither the samples nor where they lie, nor the silo's secret
    says_nothing_of(proxy, federation, *secrets(federation))
    # FedPHP's first private model is the upload; from the second round on no private model is
    bytes_sent = b"".join(bytes(stream) for stream in proxy.sent)
    for file in federation.folder.glob("silo-*/*/states/round000001.safetensors"):
        for name, tensor in load_file(file).items():
            # FD keeps a copy of its tensors, and the number of the round
            if f"contribution/{name}" not in EXTRA[mixture] and name != "round":
                assert tensor.numpy().tobytes() not in bytes_sent, name


def test_a_silo_may_keep_its_prototypes_and_send_measures_and_counts_with_its_own_noise(make_federation):
    own = ("comm_args.send_contributions=false", "comm_args.send_measures=true", "method_args.fedshift.count_noise=20")
    choice = [word for override in own for word in ("--set", override)]
    federation, server, proxy = ward(make_federation, "train_args.comm_round=2", "method_args.method=fedshift+fedmr")
    finished(server, *(federation.silo(rank, *choice) for rank in (1, 2, 3)))
    sent = [message for stream in proxy.sent for message in messages(stream)]
    uploads = [(meta, tensors) for kind, _, meta, tensors in sent if kind == Kind.UPLOAD]
    assert not any(name.startswith("contribution/") for _, tensors in uploads for name in tensors)
    assert all(meta.keys() == {"loss_terms", "personalised"} for meta, _ in uploads)
    assert all(line["personalised_accuracy"] > 0 for line in federation.lines())
    recipe = recipes.load(federation.recipe, federation.overrides)
    openings = [(header.sender, tensors) for kind, header, _, tensors in sent if kind == Kind.OPENING]
    assert len(openings) == 3
    for rank, tensors in openings:
        counts = torch.from_numpy(silos.load(recipe, rank - 1).counts)
        assert not any(torch.equal(tensor, smoothed_counts(counts, smoothing=1.0)) for tensor in tensors.values())


def test_every_field_has_a_scenario():
    scenes = {"always", "failed", "upload refused", *(when for whens, _, _ in WHOLE.values() for when in whens)}
    assert {field.when for field in FIELDS} == scenes | ELSEWHERE
