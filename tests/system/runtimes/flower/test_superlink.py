"""A generated app on a SuperLink with TLS, and SuperNodes as processes that hold their own data."""

import json
import re

import numpy as np
import pytest
from federations import same
from flower_environment import kill, says
from recipe_texts import SILOS
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runtimes.silo import certs
from fl_labelskew_plugins.runtimes.silo.runtime import free_port

RECIPE = (
    SILOS.replace("partition_args: {partition_method: pcdd, classes_per_client: 4}\n", "")
    .replace("{dataset: digits}", "{dataset: npz, input_shape: [1, 8, 8], classes: 10, mean: [0.3], std: [0.4]}")
    .replace("fedavg", "map")
    .replace("backend: GRPC", "backend: GRPC, send_measures: true")
    + "validation_args: {server_test_data: false, per_client: true}\n"
    + "client_specific_args: {data_silo_config: [north.yaml, south.yaml, west.yaml]}\n"
)
OWN = "data_args: {{dataset: npz, data_cache_dir: {}, classes: 10}}\ncomm_args: {{send_measures: true}}\n"


@pytest.fixture
def silos(tmp_path):
    """A recipe of three silos with different classes, and their files and data."""
    x, y = load_digits(return_X_y=True)
    for name, classes in (("north", range(5)), ("south", range(3, 10)), ("west", (0, 9))):
        rows = np.isin(y, list(classes))
        np.savez(tmp_path / f"{name}.npz", x=x[rows].reshape(-1, 1, 8, 8).astype("float32") / 16, y=y[rows])
        (tmp_path / f"{name}.yaml").write_text(OWN.format(tmp_path / f"{name}.npz"))
    (tmp_path / "federation.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.timeout(600)
def test_restarted_nodes_and_a_resumed_server_give_the_undisturbed_result(flower, silos, forker):
    done = forker.start(
        ["run", silos / "federation.yaml", "--run-dir", silos / "grpc", "--host", "none"], silos / "log"
    )
    assert done.wait() == 0, done.text

    app, links, fleet = silos / "app", silos / "links", free_port()
    main(["new", "flower-app", str(app), "--recipe", str(silos / "federation.yaml")], standalone_mode=False)
    certs.new(silos / "certs", 3, ["localhost", "127.0.0.1"])
    links.mkdir()
    config = silos / "home" / ".flwr" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        f'[superlink.mine]\naddress = "localhost:{fleet}"\nroot-certificates = "{silos / "certs" / "ca.pem"}"\n'
    )
    tls = [word for name, file in (("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem"))
           for word in (f"--ssl-{name}file", silos / "certs" / file)]  # fmt: skip
    flower.start("flower-superlink", *tls, "--port", fleet, log=links / "superlink")
    says(links / "superlink", "Uvicorn running")

    def node(rank, name):
        folder = silos / f"node-{rank}"
        folder.mkdir(exist_ok=True)
        own = f"silo={rank} data='{silos / name}.yaml'"
        command = ["flower-supernode", "--root-certificates", silos / "certs" / "ca.pem", "--node-config", own]
        command += ["--superlink", f"localhost:{fleet}", "--port", free_port()]
        return flower.start(*command, log=folder / "log")

    node(1, "north")
    node(3, "west")
    south = node(2, "south")

    def server(**settings):
        given = " ".join(f"{key}='{value}'" for key, value in settings.items())
        log = links / f"run-{len(settings)}-{min(settings)}"
        flower.start("flwr", "run", app, "mine", "--stream", "--run-config", given, log=log, cwd=app)
        return log

    log = server(**{"run-dir": silos / "run", "set": "comm_args.reconnect_s=120"})
    says(log, "round 1/3")
    kill(south)
    node(2, "south")
    says(log, "round 2/3")
    number = re.search(r"started run (\d+)", log.read_text())[1]
    flower.run("flwr", "stop", number, "mine", log=links / "stop", cwd=app)
    assert len(read_lines(silos / "run" / "metrics.jsonl")) >= 2
    log = server(resume=silos / "run")
    says(log, "results: ")

    here, there = silos / "grpc", silos / "run"
    assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()
    same(*(load_file(folder / "model.safetensors") for folder in (here, there)))
    assert sorted(json.loads((there / "nodes.json").read_text())) == ["1", "2", "3"]
    own = [
        next(folder.glob("*/personalised.safetensors"))
        for folder in (here / "silos" / "silo-2", silos / "node-2" / "silo-2")
    ]
    assert own[0].read_bytes() == own[1].read_bytes()
