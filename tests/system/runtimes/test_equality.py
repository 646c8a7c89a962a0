"""One recipe and one seed give the same weights, bit for bit, in one process, over MPI and across silos."""

import json

import pytest
from federations import same
from recipe_texts import NETWORK, SILOS, simulation
from safetensors.torch import load_file

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.isic2019 import ISIC2019

METHODS = ["fedavg", "fedrs", "map", "fedphp", "fedlc", "fedshift", "fedmr"]
PARTIAL = "train_args.client_num_per_round=2"
# two of the partial runs have an optimiser that sends more than weights
OPTIMIZERS = {"fedrs": ["train_args.federated_optimizer=FedDC"], "fedlc": ["train_args.federated_optimizer=Mime"]}
WIDE = [f"model_args.{what}" for what in ("model=wide_resnet", "depth=10", "widen=1")]
WIDE += [f"train_args.{what}" for what in ("comm_round=1", "epochs=1", "batch_size=512")]
SETTINGS = [["method_args.method=fedavg"]]
SETTINGS += [[f"method_args.method={method}", *OPTIMIZERS.get(method, ()), PARTIAL] for method in METHODS]
SETTINGS += [
    ["train_args.proxy_aggregation=class", "train_args.proxy_smoothing=1", PARTIAL],
    [*WIDE, PARTIAL],  # whole numbers travel
    [
        "data_args.dataset=isic2019",
        "data_args.data_cache_dir=PICTURES",
        "data_args.crop=32",
        "partition_args.partition_method=iid",
        "train_args.epochs=1",
    ],  # decoded and augmented by other processes
    # tensors of an optimiser (sent in both directions, and private), of two methods, and of a shared module
    [
        "method_args.method=moon+fedmr",
        "method_args.moon.projection=mlp",
        "train_args.federated_optimizer=SCAFFOLD",
        PARTIAL,
    ],
    ["method_args.method=map", "train_args.federated_optimizer=FedDyn", PARTIAL],
    ["model_args.model=NETWORK.py:make_network", "model_args.width=8", "train_args.augment=[flip, crop]", PARTIAL],
    ["method_args.method=fedlc", "train_args.federated_optimizer=FedNova"],
    ["method_args.method=fedetf", "train_args.federated_optimizer=FedLESAM", PARTIAL],
    ["method_args.method=fedgela", "train_args.federated_optimizer=FedSAM", PARTIAL],
    ["method_args.method=feddisco", PARTIAL],
    ["method_args.method=fedlc+ccvr", PARTIAL],
    [
        "method_args.method=fedshift+fedmr",
        "train_args.federated_optimizer=FedOpt",
        "train_args.server_optimizer=adam",
        "train_args.server_lr=0.01",
        PARTIAL,
    ],
]
SUMS = [
    ["comm_args.secure_aggregation=true", *more]
    for more in (
        ["method_args.method=map"],
        ["method_args.method=fedshift+fedmr", "train_args.federated_optimizer=FedDyn", "comm_args.secure_bits=16"],
        ["method_args.method=fd"],
        ["method_args.method=ccvr"],
        [*WIDE, "comm_args.secure_clip=2"],
        # across silos their own secrets make the noise
        ["method_args.method=fedrs", "privacy_args.noise_multiplier=0.5", "privacy_args.clip=0.5"],
    )
]


def name(setting):
    """A folder's."""
    return "-".join(word.partition("=")[2] for word in setting)


NAMES = [name(setting) for setting in SETTINGS]

DRIVER = """\
import json, sys
from pathlib import Path
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.runtimes.mpi.rank import as_rank
from fl_labelskew_plugins.runtimes.options import RunOptions
with as_rank():
    for overrides, out in json.load(open(sys.argv[2])):
        start(RunOptions(Path(sys.argv[1]), overrides, run_dir=Path(out), quiet=True))
"""


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A setting with the folder of real pictures in its place."""
    folder = tmp_path_factory.mktemp("pictures") / "isic"
    fakes.write(ISIC2019(), folder, samples=80, seed=0)
    (folder.parent / "net.py").write_text(NETWORK)
    places = {"PICTURES": str(folder), "NETWORK.py": str(folder.parent / "net.py")}

    def put(override):
        key, _, value = override.partition("=")
        return f"{key}={next((value.replace(*place) for place in places.items() if place[0] in value), value)}"

    return lambda setting: [put(override) for override in setting]


@pytest.fixture(scope="module")
def mpi(forker, tmp_path_factory, settled):
    """Every setting in one mpirun, two workers for two or three clients; the folder of each run."""
    folder = tmp_path_factory.mktemp("mpi")
    return over_mpi(forker, folder, [settled(setting) for setting in SETTINGS], NAMES)


def over_mpi(forker, folder, settings, names):
    """Run these in the folder, each in its own subfolder."""
    (folder / "recipe.yaml").write_text(simulation(SILOS))
    (folder / "driver.py").write_text(DRIVER)
    jobs = [
        ([*setting, "comm_args.backend=MPI"], str(folder / name)) for name, setting in zip(names, settings, strict=True)
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = forker.mpirun(folder / "driver.py", ["recipe.yaml", "jobs.json"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(("name", "setting"), list(zip(NAMES, SETTINGS, strict=True)), ids=NAMES)
def test_all_runtimes_give_the_same_weights(name, setting, mpi, make_federation, sp_weights, settled):
    setting = settled(setting)
    expected = sp_weights(*setting)
    lines = [json.loads(line) for line in (mpi / name / "metrics.jsonl").read_text().splitlines()]
    same(expected, load_file(mpi / name / "model.safetensors"))

    across = make_federation("silos")
    across.overrides = [*setting, "device_args.loader_workers=0"]  # while others decode in sp and over MPI
    server, silos = across.server(), across.silos()
    assert [process.wait() for process in (server, *silos)] == [0, 0, 0, 0], server.text
    assert not [silo.text for silo in silos if "warning" in silo.text]  # such as of a state that is not there
    same(expected, across.weights())
    for row, theirs in zip(across.lines(), lines, strict=True):
        assert all(row[key] == theirs[key] for key in ("clients", "accuracy", "bytes_up"))
        assert row["loss_terms"] == {}  # a silo keeps its measures to itself


@pytest.mark.parametrize("method", ["map", "fedmr", "fedshift"])
def test_metrics_over_mpi_equal_those_of_one_process(method, mpi, sp_run):
    here, there = sp_run(f"method_args.method={method}", PARTIAL), mpi / f"{method}-2"
    assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()
    ours, theirs = sorted((here / "clients").glob("*")), sorted((there / "clients").glob("*"))
    assert [file.name for file in ours] == [file.name for file in theirs]
    assert [file.read_bytes() for file in ours] == [file.read_bytes() for file in theirs]


def test_sums_over_mpi_equal_those_of_one_process(forker, tmp_path, sp_run):
    over_mpi(forker, tmp_path, SUMS, map(name, SUMS))
    for setting in SUMS:
        here, there = sp_run(*setting), tmp_path / name(setting)
        assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()
        same(load_file(here / "model.safetensors"), load_file(there / "model.safetensors"))
