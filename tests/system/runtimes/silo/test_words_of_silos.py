"""Every field of every message with malicious text: none is shown, written or drawn without cleaning."""

import json
import struct
from dataclasses import asdict

import pytest
import torch
from federations import FACTS, Lines
from matplotlib.text import Text
from recipe_texts import SILOS

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.policy import Policy
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.silo import facts
from fl_labelskew_plugins.runtimes.silo.client import SiloClient
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.silo.guard import Guard
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.server import SiloServer
from fl_labelskew_plugins.runtimes.silo.streams import assemble, cut
from fl_labelskew_plugins.runtimes.silo.streams import decoded as decode
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message
from fl_labelskew_plugins.runtimes.wire import Header, WireError
from fl_labelskew_plugins.show.progress import Plain

LOGISTIC = ["model_args.model=logistic", "method_args.method=fedshift", "train_args.epochs=1"]
EVIL = ["a\nround 9/9  accuracy 99.99 %", "a\x1b[2J", "\u202eb\u2066", "c\u2028d\x85\r", "x" * 300_000]
LONGEST = 1000
TRAIN = {"times_selected": 1, "state_round": -1, "kept_rounds": [], "personalised": False}
MODEL = {"model/classifier.weight": torch.zeros(10, 64), "model/classifier.bias": torch.zeros(10)}
DIMENSIONS = [10**18, 0, *[1] * 14]


def variants(meta):
    """The same mapping with harm in each of its fields, and under the name of one."""
    for evil in EVIL:
        yield {**meta, evil: evil}
    for key, value in meta.items():
        for bad in (*EVIL, EVIL, [0] * 50_000, dict(zip(EVIL, EVIL, strict=True)), 10**19):
            yield {**meta, key: bad}
        if isinstance(value, dict):
            yield from ({**meta, key: inner} for inner in variants(value))


def blobs(kind, sender, round, meta=None, tensors=()):
    """A message's bytes, as whoever keeps to no rule writes them; ``tensors``: names and shapes, of bytes."""
    described, end = {"__metadata__": {"meta": json.dumps(meta or {})}}, 0
    for name, shape in tensors:
        size = torch.Size(shape).numel()
        described[name] = {"dtype": "U8", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(described).encode()
    payload = struct.pack("<Q", len(text)) + text + b"\0" * end
    return Header(int(kind), sender, 0, round, len(payload)), bytearray(payload)


def decoded(kind, sender, round=-1, meta=None, tensors=()):
    """That message as a transport hands it out, or the one in its place."""
    try:
        return decode(*blobs(kind, sender, round, meta, tensors))
    except WireError as error:
        return Message(Kind.REFUSED, sender, 0, meta={"reason": f"sent {error}"})


def good(kind, sender, round=-1, meta=None, tensors=None):
    parts = wire.encode(kind, sender, 0, round, meta or {}, tensors or {})
    return decode(*assemble(cut(parts, 2**20), lambda header: None, Spool()))


def sound(text, longest=LONGEST):
    """Whether each of its lines is one that somebody of this house may have written."""
    for line in text.splitlines():
        assert line.isprintable(), line[:300]
        assert len(line) <= longest, line[:300]
    assert "\nround 9/9" not in text


def recipe(*overrides):
    return recipes.parse(SILOS, overrides=[*LOGISTIC, *overrides])


def test_fields_of_messages_from_silos(tmp_path, capsys, monkeypatch, pictures):
    names = [(f"model/{evil}", [1]) for evil in EVIL] + [("model/" + "n" * 249, [1]), ("model/n", DIMENSIONS)]
    bad_terms = [{evil: 1.0} for evil in EVIL] + [{"$\\frac{$": 1.0}, {"ö": 1.0}, {"": 1.0}, {"a" * 41: 1.0}]
    many = {f"{'t' * 37}{number:03d}": 1e308 for number in range(100)}  # as much as is taken
    uploads = [(meta, ()) for meta in variants({"loss_terms": {"cross_entropy": 1.0}, "personalised": [1, 2]})]
    uploads += [({"loss_terms": terms}, ()) for terms in bad_terms] + [({}, [tensor]) for tensor in names]
    here = recipe(f"train_args.comm_round={len(uploads)}", "validation_args.frequency_of_the_test=0")
    drawn, show = [], Lines()
    save = plots.save
    monkeypatch.setattr(plots, "save", lambda picture, path: drawn.append(picture) or save(picture, path))
    transport = ServerTransport("127.0.0.1:0", silos=3)
    folder = RunFolder(tmp_path / "run")
    folder.hold()
    server = SiloServer(Host(), transport, here, None, show, "to go on", folder, status.Silos([""] * 3))
    for meta in variants(FACTS | {"counts": [40] * 10, "classes": "0" * 32}):
        transport.arrived.put(decoded(Kind.HELLO, 3, meta=meta))
    for meta in variants({"reason": "x"}):
        transport.arrived.put(decoded(Kind.FAILED, 3, meta=meta))
        transport.arrived.put(decoded(Kind.FINISH, 3, meta=meta))
    for rank in (1, 2, 3):
        transport.arrived.put(good(Kind.HELLO, rank, meta=FACTS))
    try:
        session = server.gather()
        record = Record(session, folder, Plain(), resume=False)
        record.progress.start("run", 0, len(uploads), 3)
        for name in names:
            transport.arrived.put(decoded(Kind.OPENING, 3, tensors=[name]))
            transport.arrived.put(good(Kind.HELLO, 3, meta=FACTS))
        for rank in (1, 2, 3):
            transport.arrived.put(
                good(Kind.OPENING, rank, tensors={"smoothed": torch.full((10,), 40.0, dtype=torch.float64)})
            )
        for round, (meta, tensors) in enumerate(uploads):
            evil = decoded(Kind.UPLOAD, 3, round, meta, tensors or [("model/a", [3])])
            measures = {"loss_terms": many} if round == len(uploads) - 1 else {}
            answers = [evil, *(good(Kind.UPLOAD, rank, round, measures, MODEL) for rank in (1, 2))]
            if evil.kind == Kind.REFUSED:  # its connection is closed
                answers[1:1] = [good(Kind.UPLOAD, 3, round, {"loss_terms": "x"}, MODEL)]
            for arrived in answers:
                transport.arrived.put(arrived)
        for rank in (1, 2, 3):
            transport.arrived.put(good(Kind.FINISH, rank))
        server.train(record)
        record.finish()
    finally:
        transport.stop_receive_message()
        folder.release()
    assert json.loads((folder.path / "status.json").read_text())["silos"][2]["rank"] == 3
    assert len(record.folder.metrics.read_text().splitlines()) == len(uploads)
    assert all(json.loads(line)["left_out"] == [2] for line in record.folder.metrics.read_text().splitlines())
    out = capsys.readouterr()
    assert len(show.lines) > 50
    assert "+ 12 more" in out.out
    for line in [*show.lines, *out.out.splitlines(), *out.err.splitlines()]:
        sound(line + "\n")
        assert "\n" not in line
    for file in folder.path.rglob("*.json*"):
        sound(file.read_text(), longest=20_000)
    words = [text.get_text() for picture in drawn for text in picture.findobj(Text)]
    assert "training: " + "t" * 37 + "000" in words
    assert all(word.replace("\n", "").isprintable() and len(word) < 100 for word in words)


def silo(folder, *overrides):
    """Silo 1 in this process, without a connection, and the valid messages that it got."""
    here = recipe(*overrides)
    data = facts.load(here, 0)
    show = Lines()
    made = SiloClient(Host(), SiloTransport("127.0.0.1:1", 1), 1, here, data, folder, show)
    samples = data.facts.samples
    numbers = {"num_clients": 3, "clients_per_round": 3, "rounds": 3, "epochs": 1, "num_classes": 10}
    numbers |= {"num_features": 64, "num_samples": 3 * samples, "min_samples": samples, "seed": 0}
    made.welcome = {"run": "0" * 16, "federation": numbers, "settings": facts.agreed(here)}
    made.lines = show.lines
    return made


@pytest.fixture
def client(tmp_path):
    return silo(tmp_path / "silo")


def failure(client, arrived):
    """The error with which this message ends the silo; None if it continues."""
    client.failure = None
    client.receive_message(arrived.kind, arrived)
    return None if client.failure is None else str(client.failure)


def test_fields_of_messages_from_the_server(client):
    said = [failure(client, decoded(Kind.WELCOME, 0, meta=meta)) for meta in variants(client.welcome)]
    assert said.count(None) == len(EVIL)  # a further name, which nobody reads
    assert failure(client, decoded(Kind.WELCOME, 0, meta=client.welcome)) is None
    said += [failure(client, decoded(Kind.TRAIN, 0, 0, meta=meta)) for meta in variants(TRAIN)]
    said += [failure(client, decoded(Kind.TRAIN, 0, 0, TRAIN, [(f"model/{evil}", [1])])) for evil in EVIL]
    said += [failure(client, decoded(Kind.TRAIN, 0, 0, TRAIN, [("model/classifier.bias", DIMENSIONS)]))]
    for meta in variants({"taken": False, "reason": "late"}):
        client.upload = (0, None)  # as if it waited for this verdict
        failure(client, decoded(Kind.VERDICT, 0, 0, meta=meta))
    turned = {"done": False, "reason": "late", "class_names": ["a"] * 10}
    said += [failure(client, decoded(Kind.FINISH, 0, meta=meta)) for meta in variants(turned)]
    said += [failure(client, decoded(Kind.FINISH, 0, meta=meta)) for meta in variants({"done": True, "state_round": 0})]
    assert len(client.lines) > 10
    for line in [*client.lines, *filter(None, said)]:
        sound(line)
        assert "\n" not in line
        assert "Traceback" not in line


def test_tensors_that_training_does_not_use_are_refused(client):
    """Sent instead of the private state, they could give another request the digest of an earlier one."""
    client.receive_message(Kind.WELCOME, good(Kind.WELCOME, 0, meta=client.welcome))
    extra = {**MODEL, "optimizer/drift": torch.zeros(2)}
    line = failure(client, good(Kind.TRAIN, 0, 0, meta=TRAIN, tensors=extra))
    assert line == "round 1: the server sent tensors that training does not use"


def test_a_reported_test_in_training_depends_on_the_test_samples(tmp_path):
    """With other test samples, the same request has another answer, which policy and ledger must count."""
    client = silo(tmp_path, "comm_args.send_measures=true", "method_args.method=fedphp")
    client.guard = Guard(Policy(), "north.yaml", tmp_path)
    requests = []
    for samples in (0, 0, 1):
        client.data_digest = str(samples)
        client.upload = None
        assert failure(client, good(Kind.WELCOME, 0, meta=client.welcome)) is None
        assert failure(client, good(Kind.TRAIN, 0, 0, TRAIN | {"personalised": True}, MODEL)) is None
        requests.append(client.request)
    assert requests[0] == requests[1] != requests[2]


@pytest.mark.parametrize(
    ("name", "shape", "refused"),
    [
        ("prior", (10, 64), False),
        ("optimizer/momentum", (10, 64), False),
        ("round", (), False),
        ("total", (1, 1), True),
        ("prior", (4, 10), True),
        ("prior", (10, 65), True),
        ("prior", (10, 10, 10), True),
        ("optimizer/momentum", (650,), True),
    ],
)
def test_with_noise_shared_tensors_of_a_wrong_shape_are_refused_before_training(name, shape, refused, tmp_path):
    """Training would fail only with certain classes, or need much memory only without them."""
    noise = ["method_args.method=fedrs", "method_args.upload_clip=1", "method_args.upload_sigma=1"]
    client = silo(tmp_path, *noise)
    assert failure(client, good(Kind.WELCOME, 0, meta=client.welcome)) is None
    line = failure(client, good(Kind.TRAIN, 0, 0, TRAIN, MODEL | {f"shared/{name}": torch.ones(shape)}))
    what = f"round 1: the server's shared tensor {name} has the shape {list(shape)}"
    assert line == (f"{what}; with noise, 10 rows of at most 64 numbers are allowed" if refused else None)


@pytest.mark.parametrize("refused", [False, True])
def test_with_noise_many_shared_tensors_are_refused(refused, tmp_path):
    """They make each batch take longer, so that the end of a training is visible to the server."""
    client = silo(tmp_path, "method_args.method=fedrs", "method_args.upload_clip=1", "method_args.upload_sigma=1")
    assert failure(client, good(Kind.WELCOME, 0, meta=client.welcome)) is None
    most = len(client.session.start) + 20
    shared = {f"shared/{i}": torch.ones(10) for i in range(most + refused)}
    line = failure(client, good(Kind.TRAIN, 0, 0, TRAIN, MODEL | shared))
    text = f"round 1: the server sends {most + 1} shared tensors; with noise, at most {most} are allowed"
    assert line == (text if refused else None)


def test_many_names_of_runs_create_no_folders(client, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for number in range(50):
        assert failure(client, good(Kind.WELCOME, 0, meta=client.welcome | {"run": f"{number:016x}"})) is None
    assert sorted(tmp_path.rglob("*")) == before
    assert sum(line.startswith("joined: ") for line in client.lines) == 5


def test_a_round_after_the_last_one_is_refused_before_it_is_recorded(client, monkeypatch):
    """Otherwise a silo would refuse all smaller rounds of the run."""
    recorded = []
    monkeypatch.setattr(client.answers, "asked", lambda *given: recorded.append(given))
    assert failure(client, good(Kind.WELCOME, 0, meta=client.welcome)) is None
    assert "round is 1000000000 at the server" in failure(client, good(Kind.TRAIN, 0, 10**9, TRAIN, MODEL))
    assert recorded == []


def test_hello_names_the_round_of_an_open_answer(client):
    """A resumed server requests an upload that an earlier one had; if it is lost, the server requests it again."""
    weights = MODEL | {"shared/prior": torch.full((10,), 0.1)}
    assert failure(client, good(Kind.WELCOME, 0, meta=client.welcome)) is None
    for taken in (True, False):
        assert client.transport.hello().meta["round"] == -1
        assert failure(client, good(Kind.TRAIN, 0, 1, TRAIN, weights)) is None
        assert client.transport.hello().meta["round"] == 1
        assert failure(client, good(Kind.VERDICT, 0, 1, {"taken": taken})) is None
    assert client.transport.hello().meta["round"] == -1


@pytest.mark.parametrize(
    ("changed", "says", "expected"),
    [
        ({"num_clients": 4}, "num_clients is 4 at the server", "3"),
        ({"clients_per_round": 1}, "clients_per_round is 1 at the server", "3"),
        ({"rounds": 3.0}, "rounds is 3.0 at the server", "3"),
        ({"epochs": True}, "epochs is true at the server", "1"),
        ({"num_classes": 10**9}, "num_classes is 1000000000 at the server", "10"),
        ({"num_features": 63}, "num_features is 63 at the server", "64"),
        ({"num_features": "64"}, "num_features is '64' at the server", "a whole number from 1 to 100000000"),
        ({"num_samples": 10**15}, "num_samples is 1000000000000000 at the server", "a whole number from "),
        ({"num_samples": 1}, "num_samples is 1 at the server", "a whole number from "),
        ({"min_samples": 0}, "min_samples is 0 at the server", "a whole number from 1 to "),
        ({"seed": -1}, "seed is -1 at the server", "0"),
        ({"more": 3}, "more is unknown", "num_clients, clients_per_round, rounds, epochs, num_classes, "),
    ],
)
def test_a_silo_joins_only_the_federation_of_its_recipe(changed, says, expected, client):
    meta = client.welcome | {"federation": client.welcome["federation"] | changed}
    line = failure(client, decoded(Kind.WELCOME, 0, meta=meta))
    assert line is not None
    assert line.startswith(f"the server's federation: {says}; expected here: {expected}")
    line = failure(client, decoded(Kind.TRAIN, 0, 0))
    assert line == "the server requests training before it has described the run"


def test_a_silo_refuses_a_welcome_with_missing_or_wrong_fields(client):
    for meta in (
        {key: value for key, value in client.welcome.items() if key != gone}
        for gone in ("run", "federation", "settings")
    ):
        assert failure(client, decoded(Kind.WELCOME, 0, meta=meta)) is not None
    for name in client.welcome["federation"]:
        numbers = {key: value for key, value in client.welcome["federation"].items() if key != name}
        said = failure(client, decoded(Kind.WELCOME, 0, meta=client.welcome | {"federation": numbers}))
        assert said.startswith(f"the server's federation: {name} is null at the server; expected here: ")
    settings = client.welcome["settings"]
    train = {**settings, "train_args": {**settings["train_args"], "epochs": True}}
    said = failure(client, decoded(Kind.WELCOME, 0, meta=client.welcome | {"settings": train}))
    assert said == "train_args.epochs: 1 here and true at the server; use the server's recipe"
    assert failure(client, decoded(Kind.WELCOME, 0, meta=client.welcome)) is None
    assert asdict(client.session.federation) == client.welcome["federation"]


@pytest.mark.parametrize(
    ("round", "changed", "says"),
    [
        (3, {}, "round is 3 at the server; expected here: a whole number from 0 to 2"),
        (-5, {}, "round is -5 at the server"),
        (0, {"times_selected": 0}, "times_selected is 0 at the server; expected here: a whole number from 1 to 3"),
        (2, {"state_round": "0"}, "state_round is '0' at the server; expected here: a whole number from -1 to 1"),
        (0, {"state_round": 0}, "state_round is 0 at the server; expected here: -1"),
        (0, {"kept_rounds": [0, 7]}, "kept_rounds is 7 at the server"),
        (0, {"kept_rounds": None}, "kept_rounds is null at the server"),
    ],
)
def test_a_silo_trains_only_in_rounds_of_its_recipe(round, changed, says, client):
    assert failure(client, decoded(Kind.WELCOME, 0, meta=client.welcome)) is None
    assert failure(client, decoded(Kind.TRAIN, 0, round, TRAIN | changed)).startswith(f"TRAIN: {says}")
