"""``labelskew run`` with ``backend: Flower``: Flower's simulation engine gives the results of one process."""

import json
import os
import signal

import pytest
from federations import same
from flower_environment import FOLDER, says
from recipe_texts import SILOS, simulation
from safetensors.torch import load_file

METHOD, OPTIMIZER, PARTIAL = "method_args.method", "train_args.federated_optimizer", "train_args.client_num_per_round=2"
FLOWER = "comm_args.backend=Flower"
SETTINGS = {
    "map": [f"{METHOD}=map", f"{OPTIMIZER}=SCAFFOLD", PARTIAL, "validation_args.per_client=true"],  # and is resumed
    "mixture": [f"{METHOD}=fedshift+fedmr", PARTIAL],
    "fedrs": [f"{METHOD}=fedrs", f"{OPTIMIZER}=FedDyn"],
    "fedlc": [f"{METHOD}=fedlc"],
}
JOBS = """
import json, sys
from pathlib import Path
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.runtimes.options import RunOptions

recipe, jobs = sys.argv[1:]
for name, overrides in json.loads(jobs).items():
    start(RunOptions(recipe, overrides, quiet=True, run_dir=Path(name)))
start(RunOptions(quiet=True, resume=Path("map"), from_round=2))  # with private states on disk
"""


@pytest.mark.timeout(600)
def test_simulation_equals_one_process(flower, tmp_path, sp_run):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(simulation(SILOS))
    jobs = {name: [*setting, FLOWER, "tracking_args.checkpoint_every=1"] for name, setting in SETTINGS.items()}
    said = flower.run(FOLDER / "bin/python", "-c", JOBS, recipe, json.dumps(jobs), log=tmp_path / "log", timeout=500)
    assert said == ""  # of Flower and Ray, too
    for name, setting in SETTINGS.items():
        for file in ("metrics.jsonl", "model.safetensors"):
            assert (sp_run(*setting) / file).read_bytes() == (tmp_path / name / file).read_bytes(), (name, file)
    for client in range(3):  # their own models of MAP
        (own,) = (tmp_path / "map" / "silos" / f"silo-{client + 1}").glob("*/personalised.safetensors")
        same(load_file(sp_run(*SETTINGS["map"]) / "clients" / f"client{client:06d}.safetensors"), load_file(own))


def test_errors_and_ctrl_c_end_a_simulation(flower, tmp_path):
    recipe, log = tmp_path / "recipe.yaml", tmp_path / "log"
    recipe.write_text(simulation(SILOS))
    command = ["labelskew", "run", recipe, "--set", FLOWER]
    diverges = flower.start(*command, "--set", "train_args.learning_rate=1e30", "--run-dir", "nan", log=log)
    assert diverges.wait(120) == 1
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("error")]
    assert "not finite" in line
    assert "Traceback" not in log.read_text()

    long = flower.start(*command, "--set", "train_args.comm_round=1000", "--run-dir", "long", log=log)
    says(log, " 2/1000")
    os.killpg(long.pid, signal.SIGINT)  # as the terminal does
    assert long.wait(60) == 130
    assert "to resume: labelskew run" in log.read_text().splitlines()[-1]
    assert "Traceback" not in log.read_text()
