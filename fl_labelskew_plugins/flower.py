"""The two parts of a Flower app that runs a recipe, see docs/flower.md."""

from collections.abc import Mapping
from pathlib import Path

from fl_labelskew_registry import mistake
from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.recipe import parse as recipes
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
        config = {key: str(value) for key, value in context.run_config.items() if value != ""}
        resume = Path(config["resume"]) if "resume" in config else None
        run_dir = Path(config["run-dir"]) if "run-dir" in config and resume is None else None
        overrides = _overrides(config)
        options = RunOptions(recipe=recipe, overrides=overrides, run_dir=run_dir, resume=resume, host="none")
        token = GRID.set(grid)
        try:
            start(options)
        finally:
            GRID.reset(token)

    return app


def client_app(recipe: str | Path) -> ClientApp:
    """The ClientApp of a recipe.

    Keys of ``flower-supernode --node-config``: ``silo``, the number of this silo, from 1; ``folder``, for its private
    states, default ``silo-<number>``; ``data``, its own file, see docs/silos.md. In a simulation, Flower sets
    ``partition-id``.
    """
    app = ClientApp()

    @app.query()
    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        config = context.node_config
        loaded = recipes.load(recipe, _overrides({key: str(value) for key, value in context.run_config.items()}))
        rank = int(config["silo"]) if "silo" in config else int(config.get("partition-id", -1)) + 1
        if not 1 <= rank <= (silos := loaded.train.client_num_in_total):
            raise mistake("--node-config silo", f"{rank or 'missing'}", f"a number from 1 to {silos}")
        folder = Path(str(config.get("folder", f"silo-{rank}")))
        return node.answer(loaded, message, context, rank=rank, folder=folder)

    return app


def _overrides(config: Mapping[str, str]) -> list[str]:
    return config.get("set", "").split()
