"""Messages that real nodes do not send. `make test-flower` runs this file."""

import contextlib
import queue

import pytest
import torch
from fl_labelskew_registry import LabelSkewError, RunError
from flwr.app import Array, ArrayRecord, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.runtimes.flower import parcels
from fl_labelskew_plugins.runtimes.flower.bindings import Bindings, proof
from fl_labelskew_plugins.runtimes.flower.grid import GridTransport
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message

PROOFS = {rank: proof(rank) for rank in (1, 2, 3)}


def hello(rank, secret=None):
    return Message(Kind.HELLO, rank, 0, meta={"node": PROOFS[secret or rank]})


class Grid:
    """Nodes with prepared replies: messages, a content, or an error."""

    def __init__(self):
        self.replies, self.sent = {}, {}

    def get_node_ids(self):
        return list(self.replies)

    def push_messages(self, messages):
        for number, message in enumerate(messages, len(self.sent)):
            message.metadata.__dict__["_message_id"] = str(number)
            self.sent[str(number)] = message
            yield str(number)

    def pull_messages(self, numbers):
        for number in numbers:
            message = self.sent[number]
            if waiting := self.replies[message.metadata.dst_node_id]:
                answer = waiting.pop(0)
                if isinstance(answer, Error):
                    yield FlowerMessage(answer, reply_to=message)
                else:
                    content = answer if isinstance(answer, RecordDict) else parcels.parcel(map(parcels.packed, answer))
                    yield FlowerMessage(content, reply_to=message)


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """What the server gets from nodes with these replies."""
    monkeypatch.setattr("fl_labelskew_plugins.runtimes.flower.grid.LOOK_S", 0.0)
    monkeypatch.setattr("fl_labelskew_plugins.runtimes.flower.grid.AGAIN_S", 0.0)

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as in a ServerApp

    def run(replies, *, simulated=False, sent=()):
        grid = Grid()
        grid.replies = replies
        transport = GridTransport(
            grid, silos=2, audit=Audit(), spool=Spool(2**20, tmp_path), bindings=Bindings(tmp_path), seconds=9.0,
            simulated=simulated,
        )  # fmt: skip
        got = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = transport._next(0.2)
                got.append((message.kind.name, message.sender, message.meta.get("reason", "")))
                if message.kind == Kind.HELLO:
                    for each in sent:
                        transport.send_message(each)
        return got, grid

    return run


TEST = Message(Kind.TEST, 0, 1, round=0, tensors={"model.w": torch.zeros(2)})


def test_messages_of_a_connected_silo(heard):
    got, grid = heard({7: [[hello(1)], [Message(Kind.TESTED, 1, 0, round=0)]]}, sent=[TEST])
    assert got == [("HELLO", 1, ""), ("TESTED", 1, "")]
    assert [len(parcels.payloads(message.content)) for message in grid.sent.values()] == [0, 1]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ([Message(Kind.TESTED, 2, 0)], "claims to be silo 2"),
        ([Message(Kind.TESTED, 1, 0, tensors={"model.w": torch.zeros(2**19)})], "sent "),
        ([Message(Kind.TRAIN, 1, 0)], "a message of type 4"),
        (RecordDict({"messages": ArrayRecord({"x": Array("uint8", (1,), "npy", b"x")})}), "another program"),
        (RecordDict({"messages": ArrayRecord({"0": Array("uint8", (2,), parcels.FORMAT, b"xx")})}), "sent "),
        (Error(code=2, reason="KeyError"), "its ClientApp gave no answer: KeyError"),
    ],
)
def test_refused_replies(heard, second, reason):
    got, _ = heard({7: [[hello(1)], second]}, sent=[TEST])
    assert [line[0] for line in got] == ["HELLO", "REFUSED", "LEFT"]
    assert reason in got[1][2]


def test_a_node_is_bound_to_its_silo(heard, tmp_path):
    assert heard({7: [[hello(1)]]})[0] == [("HELLO", 1, "")]
    (got,), _ = heard({8: [[hello(1, secret=3)]]})  # after a restart of the server
    assert got[0] == "REFUSED"
    assert "claims to be silo 1, which is another node" in got[2]
    assert heard({9: [[hello(1)]]})[0] == [("HELLO", 1, "")]  # another id, the same secret
    got, _ = heard({7: [[hello(1)]], 8: [[hello(1)]]})
    assert got == [("HELLO", 1, ""), ("LEFT", 1, ""), ("HELLO", 1, "")]
    (tmp_path / "nodes.json").write_text("[]")
    with pytest.raises(LabelSkewError, match=r"nodes\.json: cannot be read"):
        Bindings(tmp_path)


@pytest.mark.parametrize("sender", [2, 3])
def test_strangers_cannot_stop_another_silo(heard, sender):
    (got,), _ = heard({8: [[Message(Kind.FAILED, sender, 0, meta={"reason": "no"})]]})
    assert got[:2] == ("REFUSED", -1)


@pytest.mark.parametrize("answer", [[Message(Kind.FAILED, 1, 0, meta={"reason": "no data"})], Error(2, "no data")])
def test_an_error_ends_a_simulation(heard, answer):
    with pytest.raises(RunError, match="no data"):
        heard({7: [answer]}, simulated=True)
