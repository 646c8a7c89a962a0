"""All bytes of whole runs in both directions: only the fields that docs/wire.md lists are sent."""

import getpass
import json
import socket

import numpy as np
import pytest
from federations import FACTS, Echo, finished
from wire_table import FIELDS, PAGE, Wire
from wiretap import grpc_messages, watched

from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runtimes.silo import facts as silos

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
ELSEWHERE = {"class names", "other class names", "turned away", "one normalisation"}  # test_classes.py
ELSEWHERE |= {"survey", "survey refused"}  # test_survey.py
PRIVATE = ("ward-7", "lindqvist")


@pytest.fixture
def ward(make_federation):
    """A server with silos behind a proxy; the folder's name, and so every path, is a marker."""

    def start(*overrides):
        federation = make_federation(PRIVATE[0])
        federation.overrides = list(overrides)
        federation.environment = {"USER": PRIVATE[1], "LOGNAME": PRIVATE[1], "HOSTNAME": f"{PRIVATE[1]}.example.org"}
        return federation, *watched(federation)

    return start


@pytest.mark.parametrize("method", WHOLE)
def test_every_byte_of_a_run_is_listed_and_every_listed_field_occurs(method, ward):
    whens, silo, overrides = WHOLE[method]
    federation, server, proxy = ward("train_args.comm_round=2", f"method_args.method={method}", *overrides)
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
    nobodys = [secrets(federation.folder / f"silo-{rank}", silos.load(recipe, rank - 1).data) for rank in (1, 2, 3)]
    says_nothing_of(proxy, federation, *(secret for silo in nobodys for secret in silo))


def says_nothing_of(proxy, federation, *secrets):
    """No field contains these bytes, or names of folders, users and hosts."""
    machine = [word for word in (socket.gethostname(), getpass.getuser()) if len(word) > 3 and word not in PAGE]
    words = [word.encode() for word in (*PRIVATE, str(federation.folder), *machine)]
    for streams, client in ((proxy.sent, True), (proxy.received, False)):
        for stream in streams:
            content = bytes(stream) + grpc_messages(stream, client=client)  # frames may cut the marker
            assert not [word for word in (*words, *secrets) if word in content]


def secrets(folder, data):
    """A silo's secret, its samples' rows and its labels, in the forms in which they might travel."""
    secret = (folder / "secret").read_text()
    yield from (secret.encode(), bytes.fromhex(secret))
    for x, y in ((part.x, part.y) for part in (data.train, data.test)):
        for samples in (x, (x - data.mean) / data.std if data.std is not None else x):
            for row in samples.reshape(-1, x.shape[-1]).astype(np.float32):
                if len(set(row.tolist())) > 3:  # not only zeros
                    yield row.tobytes()
                    yield json.dumps(row.tolist())[1:-1].encode()
        for form in (np.int64, np.int32, np.float32, np.uint8):
            yield y.astype(form).tobytes()
        yield json.dumps(y.tolist())[1:-1].encode()


def test_messages_of_a_failed_silo_and_of_a_refused_upload(ward):
    federation, server, proxy = ward("train_args.comm_round=1", "comm_args.min_clients=1")
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


def test_every_field_has_a_scenario():
    scenes = {"always", "failed", "upload refused", *(when for whens, _, _ in WHOLE.values() for when in whens)}
    assert {field.when for field in FIELDS} == scenes | ELSEWHERE
