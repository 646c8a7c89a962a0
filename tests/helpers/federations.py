"""What tests of federations share: questions to processes and runs, and transports and silos of the test's own."""

import threading
import time

import torch

from fl_labelskew_plugins.ledgers import audit
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runtimes.silo import certs
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.transport import Kind, Message

FACTS = {"samples": 400, "input_shape": [1, 8, 8], "num_classes": 10, "process": "x", "round": -1}


def wait_until(condition, seconds=60):
    """Wait for a condition and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def finished(*processes):
    for process in processes:
        assert process.wait() == 0, process.text
        assert "Traceback" not in process.text


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


def cached_runs(folder, text):
    """A function that runs this recipe with overrides in one process, each only once; it returns the run's folder."""
    from fl_labelskew_plugins.front import start
    from fl_labelskew_plugins.runtimes.options import RunOptions

    done = {}
    (folder / "recipe.yaml").write_text(text)

    def run(*overrides):
        if overrides not in done:
            out = folder / str(len(done))
            start.start(RunOptions(folder / "recipe.yaml", overrides, run_dir=out, quiet=True))
            done[overrides] = out
        return done[overrides]

    return run


def left_out(federation, key="left_out"):
    return [line.get(key, []) for line in federation.lines()]


def audited(folder, *events):
    """The lines of an audit log, or those of these events."""
    return [line for _, _, line in audit.read(folder) if not events or line["event"] in events]


def fingerprint(certificates, owner):
    return next(row[4] for row in certs.show(certificates)[0] if row[1] == owner)


class Echo:
    """A silo that returns ``factor`` times the weights that it receives; tests use subclasses for other behaviour."""

    def __init__(self, address, rank, *, tls=None, facts=FACTS, factor=1):
        self.rank, self.factor = rank, factor
        self.transport = SiloTransport(address, rank, tls=tls)
        self.transport.hello = lambda: Message(Kind.HELLO, rank, 0, meta=facts)
        self.transport.limits = dict.fromkeys(self.transport.limits, 2**30)
        self.transport.add_observer(self)
        self.transport.start()
        self.thread = threading.Thread(target=self.transport.handle_receive_message, daemon=True)
        self.thread.start()

    def receive_message(self, kind, arrived):
        if kind == Kind.TRAIN:
            self.answer(arrived)
        elif kind == Kind.FINISH:
            self.leave()

    def answer(self, arrived):
        tensors = {name: value * self.factor for name, value in arrived.tensors.items()}
        self.transport.send_message(Message(Kind.UPLOAD, self.rank, 0, round=arrived.round, tensors=tensors))

    def leave(self):
        self.transport.send_message(Message(Kind.FINISH, self.rank, 0))
        self.transport.stop_receive_message()


class Peer:
    """A transport that keeps its messages in order."""

    def __init__(self, transport):
        self.transport = transport
        self.got = []
        self.handlers = {}
        transport.add_observer(self)

    def receive_message(self, kind, arrived):
        self.got.append(arrived)
        self.handlers.get(kind, lambda arrived: None)(arrived)

    @property
    def kinds(self):
        return [Kind(arrived.kind).name for arrived in self.got]

    def wait(self, kind, count=1):
        """The ``count``-th message of a kind."""
        while self.kinds.count(kind.name) < count:
            assert self.transport.receive(60), f"no {kind.name}, only {self.kinds}"
        return [arrived for arrived in self.got if arrived.kind == kind][count - 1]

    def send(self, kind, receiver=0, **content):
        self.transport.send_message(Message(kind, getattr(self.transport, "rank", 0), receiver, **content))


class Lines(Progress):
    """Keeps the lines that it is given."""

    def __init__(self):
        self.lines = []

    def note(self, text, level="INFO"):
        self.lines.append(text)


class Hostile:
    """What makes a file when its pickle is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")
