"""What has to hold on a GPU, by bodies that run on the CPU too: methods and optimisers, bytes, waiting, bf16.

Nothing in here needs FedML or scikit-learn: ``benchmarks/gpu.py`` runs it on a machine that has neither.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, when CUDA starts

import pytest
import torch
from fl_labelskew_registry import catalog
from rounds import play
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.engine.sgd import SGD
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runtimes.options import RunOptions

TEXT = """\
data_args: {dataset: fashion_mnist}
partition_args: {partition_method: pcdd, classes_per_client: 6}
model_args: {model: lenet}
train_args: {client_num_in_total: 5, learning_rate: 0.01, batch_size: 64, comm_round: 4}
method_args: {method: fedavg}
"""
CASES = {entry.name: [f"method_args.method={entry.name}"] for entry in catalog.entries("methods")}
CASES["fedmr, running"] = [*CASES["fedmr"], "method_args.prototypes=running"]
CASES |= {entry.name: [f"train_args.federated_optimizer={entry.name}"] for entry in catalog.entries("optimizers")}


ON_CPU = ("fedavg", "map", "fedmr", "SCAFFOLD", "Mime")
"""Cases that compare whole federations also without a GPU: plain, with private states, sums and server states."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def build(request, fashion_mnist):
    """A recipe's session, on the device."""

    def made(*overrides, device=request.param):
        overrides = [f"device_args.using_gpu={device == 'cuda'}".lower(), fashion_mnist, *overrides]
        return session.build(parse.parse(TEXT, overrides=overrides))

    return made


@pytest.fixture
def deterministic(monkeypatch):
    """Deterministic algorithms of torch, and convolutions in full float32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def played(made, rounds):
    """The server after some rounds of two clients, and these clients' states."""
    recipe, model = made.recipe, made.trainer.model
    options = {"method": made.method, "federation": made.federation, "optimizer": recipe.optimizer}
    server, states = Server(model, weights=made.start, **options), {}
    server.open(made.openings())
    for number in range(rounds):
        play(made.trainer, server, states, number, [0, 1], made.sizes)
    assert {value.device for value in server.weights.values()} == {made.trainer.device}
    return server, states


def trained(made):
    """The global weights after two rounds, as one vector."""
    return flat(played(made, 2)[0].weights)


def flat(weights):
    return torch.cat([value.double().cpu().ravel() for value in weights.values()])


def difference(changed, expected, start):
    """Distance of two results of training, relative to the second one's distance from the start."""
    return float((changed - expected).norm() / (expected - flat(start)).norm())


@pytest.mark.parametrize(
    ("build", "case"),
    [("cpu", case) for case in ON_CPU] + [pytest.param("cuda", case, marks=pytest.mark.gpu) for case in CASES],
    indirect=["build"],
)
def test_a_federation_has_the_same_weights(build, deterministic, case):
    """As on the CPU with another memory format, up to rounding; and to the same bytes when it is run again."""
    expected = trained(reference := build(*CASES[case], "device_args.channels_last=false", device="cpu"))
    once, again = (trained(build(*CASES[case])) for _ in range(2))
    assert difference(once, expected, reference.start) < 1e-3
    assert torch.equal(once, again)


def test_bf16_is_a_rounding_of_fp32(build):
    full, half = build(), build("device_args.precision=bf16")
    weights = trained(half)
    assert 0 < difference(weights, trained(full), full.start) < 0.05
    assert {value.dtype for value in half.trainer.model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("build", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.skipif(shutil.which("mpirun") is None or not find_spec("mpi4py"), reason="no mpirun, or no mpi4py")
def test_two_workers_share_a_device(build, tmp_path):
    made, recipe = build("train_args.comm_round=1"), tmp_path / "recipe.yaml"
    recipe.write_text(made.recipe.dump())
    start(RunOptions(recipe, run_dir=tmp_path / "sp", host="none", quiet=True))
    over_mpi = ["comm_args.backend=MPI", "comm_args.workers=2", "device_args.workers_per_gpu=2"]
    command = [sys.executable, "-m", "fl_labelskew_plugins.cli.main", "run", recipe, "--host", "none", "--quiet"]
    sets = [word for override in over_mpi for word in ("--set", override)]
    subprocess.run([*command, "--run-dir", tmp_path / "mpi", *sets], timeout=250, check=True)
    single, shared = (flat(load_file(tmp_path / name / "model.safetensors")) for name in ("sp", "mpi"))
    assert difference(shared, single, made.start) < 1e-2


WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "_unique2", "unique_dim"}
"""Operations that wait for a tensor's values; all conversions to Python numbers and conditions use them."""


class Waits(TorchDispatchMode):
    """What would wait for a GPU between the first and the last of so many steps; on a GPU, it is an error."""

    def __init__(self, steps, device):
        super().__init__()
        self.left, self.device, self.between, self.found = steps, device, False, []

    def __enter__(self):
        step = self.step = SGD.step

        def stepped(optimizer):
            step(optimizer)
            self.left -= 1
            self.watch(self.left > 0)

        SGD.step = stepped
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        SGD.step = self.step
        self.watch(False)

    def watch(self, on):
        self.between = on
        if self.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error" if on else "default")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        masked = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        if self.between and (name in WAITS or masked):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", CASES)
def test_no_step_waits_for_the_device(build, case):
    made = build(*CASES[case])
    server, states = played(made, 1)
    turn = Turn(made.trainer, 0, 1, shared=server.shared, state=states[0], times_selected=2)
    _, steps = turn.batches()
    with Waits(steps, made.trainer.device) as waits:
        turn.fit(server.weights)
    assert (waits.left, waits.found) == (0, [])


def test_a_condition_on_a_tensor_is_detected():
    with Waits(1, torch.device("cpu")) as waits:
        waits.watch(True)
        assert torch.zeros(()) < 1
    assert waits.found == ["_local_scalar_dense"]
