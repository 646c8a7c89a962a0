from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import call, errors
from error_messages import message

from fl_labelskew_plugins.recipe import parse, yaml
from fl_labelskew_plugins.recipe.convert import convert

PACKAGES = "computing/scheduler/build-package/mlops-core"
STOCK = (
    "config/simulation_sp",
    "config/simulaton_mpi",
    f"{PACKAGES}/fedml-client/client-package/fedml/config",
    f"{PACKAGES}/fedml-server/server-package/fedml/config",
)
SMALL = """
common_args: {training_type: simulation, random_seed: 3}
data_args: {dataset: cifar10, partition_method: homo, partition_alpha: 0.5}
model_args: {model: resnet18}
train_args: {federated_optimizer: FedProx, fedprox_mu: 0.1, server_lr: 1, client_num_in_total: 4, momentum: 0.9, lr: 1}
comm_args: {backend: sp, batch_size: 32}
"""


def converted(text):
    return convert(text, Path("fedml_config.yaml"))


@pytest.mark.host
@pytest.mark.parametrize("folder", STOCK)
def test_stock_configurations_become_recipes(folder):
    file = Path(find_spec("fedml").submodule_search_locations[0], folder, "fedml_config.yaml")
    text = file.read_text()
    made = converted(text)
    recipe = parse.parse(made.text("recipe.yaml"))
    given = yaml.read(text)[0]
    assert recipe.train.client_num_in_total == given["train_args"]["client_num_in_total"]
    assert recipe.train.learning_rate == given["train_args"]["learning_rate"]
    assert (recipe.partition.partition_method, recipe.partitioner.params.beta) == ("dirichlet", 0.5)
    assert (recipe.model.model, recipe.method_name) == ("logistic", "fedavg")
    backends = {"sp": "sp", "MPI": "MPI", "MQTT_S3": "GRPC"}
    assert recipe.comm.backend == backends[given["comm_args"]["backend"]]
    noted = {note.partition(":")[0] for note in made.notes}
    for section, keys in given.items():
        for key, value in keys.items():
            assert made.content.get(section, {}).get(key) == value or f"{section}.{key}" in noted
    secret = given["tracking_args"]["wandb_key"]
    assert secret not in made.text("recipe.yaml") + str(made.notes)


def test_keys_move_to_their_section_and_the_rest_is_explained():
    made = converted(SMALL)
    recipe = parse.parse(made.text("recipe.yaml"))
    assert (recipe.train.batch_size, recipe.optimizer.params.fedprox_mu) == (32, 0.1)
    assert recipe.partition.partition_method == "iid"
    assert made.notes == [
        "data_args.partition_method: 'homo' is partition_args.partition_method: iid here",
        "data_args.partition_alpha: dropped; used with partition_method: dirichlet only",
        "train_args.server_lr: dropped; used with federated_optimizer: FedOpt or Mime or SCAFFOLD only",
        "train_args.momentum: kept, and used here; FedML's own trainer ignores it with client_optimizer: sgd",
        "train_args.lr: dropped; no such key here",
        "comm_args.batch_size: is train_args.batch_size here",
        "method_args.method: fedavg, FedML's own training; choose one of labelskew methods",
    ]


def test_wandb_becomes_a_tracker_and_data_sets_with_clients_stay_divided():
    text = SMALL.replace("cifar10", "femnist").replace("resnet18", "fecnn").replace("MPI", "sp")
    made = converted(text + "tracking_args: {enable_wandb: true, wandb_key: k3y, wandb_project: p, run_name: r}\n")
    recipe = parse.parse(made.text("recipe.yaml"))
    (tracker,) = recipe.tracking.trackers
    assert {key: tracker["wandb"][key] for key in ("project", "name", "mode")} == {
        "project": "p",
        "name": "r",
        "mode": "offline",
    }
    assert recipe.partition.partition_method == "natural"
    assert "k3y" not in made.text("recipe.yaml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "line 1, column 5: "),
        ("", "is not a FedML configuration; use one with sections such as common_args"),
        ("[1, 2]", "is not a FedML configuration; "),
        ("job: python main.py\nworkspace: .", "a job of FedML's launcher, not a recipe; to start it: "),
        (SMALL + "extra: 1\n", "extra: is not a section with keys; remove it"),
        (SMALL + "comm_args: {}\n", "line 7: key 'comm_args' occurs twice; first on line 6"),
    ],
)
def test_other_files_are_one_line(text, line):
    assert message(lambda: converted(text)).startswith(f"fedml_config.yaml: {line}")


def test_command_writes_a_recipe_and_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(SMALL)
    shown = call("convert", "good.yaml")
    assert shown.exit_code == 0
    assert call("convert", "good.yaml", "--out", "recipe.yaml").stdout == ""
    assert Path("recipe.yaml").read_text() == shown.stdout
    assert call("validate", "recipe.yaml").exit_code == 0
    assert errors("convert", "good.yaml", "--out", "recipe.yaml") == [
        "--out recipe.yaml: exists already; use another file"
    ]
    (line,) = errors("convert", "recipe.yaml")
    assert line == "recipe.yaml: this is already a recipe; run it with `labelskew run recipe.yaml`"
    Path("unknown.yaml").write_text(SMALL.replace("resnet18", "resnet18_gn"))
    said = call("convert", "unknown.yaml", "--out", "new.yaml", code=2).stderr
    assert said.splitlines()[-1].startswith("error: new.yaml: model_args.model: 'resnet18_gn' is unknown; allowed: ")
    assert Path("new.yaml").exists()


@pytest.mark.parametrize(
    ("rows", "address"),
    [
        ("1,1,10.0.0.1,8891\n0,0,10.0.0.9,8890\n", "10.0.0.9:8890"),
        ("0, 0, ::1, 1\n", "[::1]:1"),
        ("1,1,a,1\n", None),
        ("0,0,a,b\n", None),
        ("0,0\n", None),
        (None, None),
    ],
)
def test_server_address_comes_from_fedml_s_csv_file(rows, address, tmp_path):
    if rows is not None:
        (tmp_path / "ip.csv").write_text("eid,rank,grpc_server_ip,grpc_server_port\n" + rows)
    text = "common_args: {training_type: cross_silo}\ncomm_args: {backend: GRPC, grpc_ipconfig_path: ip.csv}\n"
    made = convert(text, tmp_path / "fedml_config.yaml")
    assert made.content["comm_args"].get("server_address") == address
    note = "is comm_args.server_address here" if address else "dropped; use comm_args.server_address: host:port of the"
    assert any(line.startswith(f"comm_args.grpc_ipconfig_path: {note}") for line in made.notes)


def test_keys_of_attacks_and_defences_keep_their_section():
    keys = {"enable_defense": True, "defense_type": "trimmed_mean", "beta": 0.1, "unheard_of": [1]}
    made = converted(SMALL + f"security_args: {keys}\n")
    assert made.content["security_args"] == keys
    assert not [note for note in made.notes if note.startswith("security_args")]
