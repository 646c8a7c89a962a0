"""One recipe and one seed give the same weights, bit for bit, in one process, over MPI and across silos."""

import pytest
from federations import same
from mpi_jobs import over_mpi, same_bytes
from recipe_texts import NETWORK, SILOS, simulation
from safetensors.torch import load_file

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.isic2019 import ISIC2019
from fl_labelskew_plugins.machine.files import read_lines

METHOD, OPTIMIZER = "method_args.method", "train_args.federated_optimizer"
PARTIAL = "train_args.client_num_per_round=2"
WIDE = [f"model_args.{what}" for what in ("model=wide_resnet", "depth=10", "widen=1")]
WIDE += [f"train_args.{what}" for what in ("comm_round=1", "epochs=1", "batch_size=512")]
PICTURES = ["data_args.dataset=isic2019", "data_args.data_cache_dir=PICTURES", "data_args.crop=32"]
PICTURES += ["partition_args.partition_method=iid", "train_args.epochs=1"]
SETTINGS = [
    [*WIDE, PARTIAL],  # whole numbers travel
    PICTURES,  # decoded and augmented by other processes
    ["model_args.model=NETWORK.py:make_network", "model_args.width=8", "train_args.augment=[flip, crop]", PARTIAL],
    ["train_args.proxy_aggregation=class", "train_args.proxy_smoothing=1", PARTIAL],
    # tensors of optimisers (sent in both directions, and private), of methods, and of a shared module
    [f"{METHOD}=fedrs", f"{OPTIMIZER}=FedDC", PARTIAL],
    [f"{METHOD}=fedlc", f"{OPTIMIZER}=Mime", PARTIAL],
    [f"{METHOD}=moon+fedmr", "method_args.moon.projection=mlp", f"{OPTIMIZER}=SCAFFOLD", PARTIAL],
    [f"{METHOD}=map", f"{OPTIMIZER}=FedDyn", PARTIAL],
    [f"{METHOD}=fedlc", f"{OPTIMIZER}=FedNova"],
    [f"{METHOD}=fedetf", f"{OPTIMIZER}=FedLESAM", PARTIAL],
    [f"{METHOD}=fedgela", f"{OPTIMIZER}=FedSAM", PARTIAL],
    *([f"{METHOD}={method}", PARTIAL] for method in ("fedphp", "feddisco", "fedlc+ccvr")),
    [
        *(f"{METHOD}=fedshift+fedmr", f"{OPTIMIZER}=FedOpt"),
        *("train_args.server_optimizer=adam", "train_args.server_lr=0.01", PARTIAL),
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
    return "-".join(word.partition("=")[2] for word in setting)


NAMES = [name(setting) for setting in SETTINGS]


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A setting with the folder of real pictures in its place."""
    folder = tmp_path_factory.mktemp("pictures") / "isic"
    fakes.write(ISIC2019(), folder, samples=80)
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
    return run_all(forker, folder, [settled(setting) for setting in SETTINGS], NAMES)


def run_all(forker, folder, settings, names):
    jobs = {name: [*setting, "comm_args.backend=MPI"] for name, setting in zip(names, settings, strict=True)}
    done = over_mpi(forker, folder, simulation(SILOS), jobs)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(("name", "setting"), list(zip(NAMES, SETTINGS, strict=True)), ids=NAMES)
def test_all_runtimes_give_the_same_numbers(name, setting, mpi, make_federation, sp_run, settled):
    setting = settled(setting)
    here, there = sp_run(*setting), mpi / name
    same_bytes(here, there)

    across = make_federation("silos")
    across.overrides = [*setting, "device_args.loader_workers=0"]  # while others decode in sp and over MPI
    server, silos = across.server(), across.silos()
    assert [process.wait() for process in (server, *silos)] == [0, 0, 0, 0], server.text
    assert not [silo.text for silo in silos if "warning" in silo.text]  # such as of a state that is not there
    same(load_file(here / "model.safetensors"), across.weights())
    for row, theirs in zip(across.lines(), read_lines(there / "metrics.jsonl"), strict=True):
        assert all(row[key] == theirs[key] for key in ("clients", "accuracy", "bytes_up"))
        assert row["loss_terms"] == {}  # a silo keeps its measures to itself


def test_sums_over_mpi_equal_those_of_one_process(forker, tmp_path, sp_run):
    run_all(forker, tmp_path, SUMS, map(name, SUMS))
    for setting in SUMS:
        same_bytes(sp_run(*setting), tmp_path / name(setting))
