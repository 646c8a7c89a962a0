"""The example of three hospitals, as in its README, each on a machine with only its own files."""

import json
import runpy
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from commands import call
from safetensors.torch import load_file

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runs import model_file
from fl_labelskew_plugins.runtimes.silo.runtime import free_port

EXAMPLE = Path(__file__).parents[4] / "examples" / "hospitals"
NAMES = ("north", "south", "coast")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The example with data and certificates, made by the README's own lines."""
    folder = tmp_path_factory.mktemp("hospitals") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "certs", "runs", "__pycache__"))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "\npython make_data.py " in readme
    assert "\nlabelskew certs new --silos 3 " in readme
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path("make_data.py")
        call("certs", "new", "--silos", "3")
    return folder


def test_no_sample_is_in_two_files_and_each_hospital_lacks_classes(made):
    parts = {name: np.load(made / "data" / f"{name}.npz") for name in (*NAMES, "server")}
    assert parts["server"].files == ["x_test", "y_test"]
    assert set(parts["server"]["y_test"]) == set(range(10))
    assert all(4 <= len(set(parts[name]["y"])) < 10 for name in NAMES)
    assert sum(len(part[part.files[1]]) for part in parts.values()) == 1797  # all of the digits


@pytest.fixture
def start(made, forker, tmp_path):
    """Start a process on a separate machine: a folder with the files of the manual's table."""
    address = f"localhost:{free_port()}"

    def begin(who, name, *role):
        folder = tmp_path / name
        for file in (f"data/{name}.npz", *(f"certs/{f}" for f in ("ca.pem", f"{who}.pem", f"{who}.key"))):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made / file, folder / file)
        for file in ("federation.yaml", f"{name}.yaml"):
            if (made / file).exists():
                shutil.copy(made / file, folder)
        argv = ["run", "federation.yaml", "--server", address, "--run-dir", "run", *role]
        return folder, forker.start(argv, folder / "log", cwd=folder, environment={"HOME": folder})

    yield begin
    forker.end_all()


def test_the_federation_runs_and_data_stay_at_their_hospitals(start):
    parts = [start("server", "server", "--role", "server")]
    parts += [start(f"silo-{k}", name, "--role", "client", "--rank", str(k)) for k, name in enumerate(NAMES, 1)]
    for _, process in parts:
        assert process.wait(120) == 0, process.text
        assert "client_id_list" not in process.text  # the host's
    (server, _), *silos = parts
    assert json.loads((server / "run" / "summary.json").read_text())["best_accuracy"] > 0.8  # one class is 0.1
    lines = read_lines(server / "run" / "metrics.jsonl")
    assert all(line["clients"] == [0, 1, 2] for line in lines)
    assert all(line["personalised_accuracy"] > 0 for line in lines)  # the north's, which tells it
    final = load_file(server / "run" / "model.safetensors")
    for folder, _ in silos:
        assert stat.S_IMODE((folder / "run" / "secret").stat().st_mode) == 0o600
        (run_folder,) = (path for path in (folder / "run").iterdir() if path.is_dir())
        weights = load_file(run_folder / "model.safetensors")
        assert all(weights[name].equal(value) for name, value in final.items())
        about = model_file.read_metadata(run_folder / "model.safetensors")
        assert (about.round, about.client, len(about.mean)) == (10, None, 1)
        assert len((run_folder / "metrics.jsonl").read_text().splitlines()) == 10
    assert "joined: 414 training samples of 1152, 10 rounds" in silos[0][1].text  # the north's
