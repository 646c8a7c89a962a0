"""Memory of server and silos for a large model, in addition to their memory before it."""

from federations import finished
from memory import Peak

BIG = ["model_args.hidden=[5000,5000]", "partition_args.partition_method=iid", "validation_args.personalised=false"]
BIG += ["comm_args.upload_memory_mb=0", "tracking_args.checkpoint_every=1", "train_args.client_num_in_total=2"]
BIG += [f"train_args.{key}" for key in ("comm_round=2", "epochs=1", "batch_size=1000", "learning_rate=0.001")]
MODEL = 4 * (64 * 5000 + 5000 + 5000 * 5000 + 5000 + 5000 * 10 + 10) / 2**20
"""MB."""


def test_a_large_model_is_in_memory_twice(federation):
    federation.overrides = BIG
    silos = federation.silos(1, 2)
    for silo in silos:
        silo.says("waiting for the server")
    first = Peak(*(silo.pid for silo in silos))
    server = federation.server()
    server.says("listening on")
    second = Peak(server.pid)
    finished(server, *silos)
    # the network with its gradients or its upload; the round's model and the sum of the uploads; and buffers of gRPC,
    # activations and libraries, which do not grow with the model; it was 6.6 and 4.4 when each step kept a copy
    assert max(first.end()) < 4.1 * MODEL
    assert max(second.end()) < 3.4 * MODEL
