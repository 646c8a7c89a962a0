"""Memory of server and silos for a large model, in addition to their memory before it."""

import contextlib
import threading
from pathlib import Path

import psutil
from federations import finished

BIG = [
    "model_args.hidden=[7000,7000]",
    "train_args.comm_round=2",
    "train_args.epochs=1",
    "train_args.batch_size=1000",
    "train_args.client_num_in_total=2",
    "train_args.learning_rate=0.001",
    "partition_args.partition_method=iid",
    "validation_args.personalised=false",
    "comm_args.upload_memory_mb=0",
    "tracking_args.checkpoint_every=1",
]
MODEL = 4 * (64 * 7000 + 7000 + 7000 * 7000 + 7000 + 7000 * 10 + 10)


class Watch:
    """Maximum additional memory of each process from now on, in sizes of the model."""

    def __init__(self, processes):
        self.processes = [psutil.Process(process.pid) for process in processes]
        self.before = [self.held(process) for process in self.processes]
        self.most, self.over = list(self.before), threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    @staticmethod
    def held(process):
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
        return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)

    def look(self):
        while not self.over.wait(0.02):
            for i, process in enumerate(self.processes):
                with contextlib.suppress(OSError, psutil.Error):
                    self.most[i] = max(self.most[i], self.held(process))

    def end(self):
        self.over.set()
        self.thread.join()
        return [(most - before) / MODEL for most, before in zip(self.most, self.before, strict=True)]


def test_a_large_model_is_in_memory_twice(federation):
    federation.overrides = BIG
    silos = federation.silos(1, 2)
    for silo in silos:
        silo.says("waiting for the server")
    first = Watch(silos)
    server = federation.server()
    server.says("listening on")
    second = Watch([server])
    finished(server, *silos)
    # the network with its gradients or its upload; the round's model and the sum of the uploads; and buffers of gRPC,
    # activations and libraries, which do not grow with the model; it was 6.6 and 4.4 when each step kept a copy
    models = {"silo": max(first.end()), "server": max(second.end())}
    assert models["silo"] < 3.8
    assert models["server"] < 3.4
