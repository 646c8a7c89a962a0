"""The two parts of a Flower app that runs a recipe, see docs/flower.md."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, RunError, mistake
from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_labelskew_plugins.front.start import folder_of, start
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import RESUME
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runtimes.flower import node
from fl_labelskew_plugins.runtimes.flower.runtime import GRID
from fl_labelskew_plugins.runtimes.options import RunOptions


def server_app(recipe: str | Path) -> ServerApp:
    """The ServerApp of a recipe.

    Keys of ``flwr run --run-config``: ``run-dir``, the folder of a new run; ``resume``, that of a run to resume; and
    ``set``, values of the recipe to change, such as ``train_args.comm_round=5``, separated by spaces.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = _texts(context.run_config)
        overrides = config.get("set", "").split()
        resume = Path(config["resume"]).absolute() if "resume" in config else None
        token = GRID.set(grid)
        try:
            given = Path(config["run-dir"]) if "run-dir" in config else None
            folder = resume or folder_of(recipes.load(recipe, overrides), given).path.absolute()
            config = {"resume": str(folder)} | ({"set": config["set"]} if overrides else {})
            text = " ".join(f'{key}="{value}"' for key, value in config.items())
            os.environ[RESUME] = f"to resume: flwr run . --stream --run-config {shlex.quote(text)}"
            if resume is None:
                options = RunOptions(recipe, overrides, run_dir=folder, host="none")
            else:  # by default with the run's own recipe
                options = RunOptions(recipe if overrides else None, overrides, resume=resume, host="none")
            start(options)
        except LabelSkewError as error:
            log.error(error.shown())
            raise RunError(str(error)) from None  # Flower then marks the run as failed
        finally:
            GRID.reset(token)

    return app


def client_app(recipe: str | Path) -> ClientApp:
    """The ClientApp of a recipe.

    Keys of ``flower-supernode --node-config``: ``silo``, the number of this silo, from 1; ``folder``, for its private
    states, default ``silo-<number>`` in the current folder; and ``data``, the silo's own file of docs/silos.md. In a
    simulation, Flower's own keys number the silos, and their folders are in the run's folder.
    """
    app = ClientApp()

    @app.query()
    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        run, config = _texts(context.run_config), _texts(context.node_config)
        loaded = recipes.load(recipe, run.get("set", "").split())
        silos, simulated = loaded.train.client_num_in_total, "partition-id" in config
        if simulated and config.get("num-partitions") != str(silos):
            problem = f"{config.get('num-partitions')} SuperNodes for {silos} clients"
            raise mistake("flwr run", problem, f"--federation-config num-supernodes={silos}")
        rank = str(int(config["partition-id"]) + 1) if simulated else config.get("silo", "missing")
        if not rank.isdecimal() or not 1 <= int(rank) <= silos:
            raise mistake("--node-config silo", clean(rank, 40), f"a number from 1 to {silos}")
        home = Path(run.get("resume") or run.get("run-dir") or ".") / "silos" if simulated else Path()
        folder = Path(config.get("folder") or home / f"silo-{rank}")
        return node.answer(_with_data(loaded, int(rank), config), message, context, rank=int(rank), folder=folder)

    return app


def _texts(config: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in config.items() if value != ""}


def _with_data(recipe: Recipe, rank: int, config: Mapping[str, str]) -> Recipe:
    """The recipe with this node's own file in the list of the silos' files."""
    if "data" not in config:
        return recipe
    files = list(recipe.client_specific.data_silo_config)
    if not files:
        problem = "the recipe lists no files of silos"
        raise mistake("--node-config data", problem, "client_specific_args.data_silo_config, a name for each silo")
    files[rank - 1] = str(Path(config["data"]).expanduser().absolute())
    changed = recipe.client_specific.model_copy(update={"data_silo_config": files})
    return recipe.model_copy(update={"client_specific": changed})
