"""Seconds of a round on Flower's simulation engine, compared with one process and with a hand-written Flower app.

    PATH=.venv-flower/bin:$PATH python benchmarks/flower.py            # about 3 minutes on two cores
    PATH=.venv-flower/bin:$PATH python benchmarks/flower.py --tiny     # one minute: only a check

Setting: scikit-learn's digits, 10 clients of 2 classes, an MLP of 9610 parameters, FedAvg, ``--epochs`` local epochs
with batches of 16, and a test after each round. The hand-written app is a ServerApp and a ClientApp of 40 lines with
the same network, data and steps. It sends only weights. In both apps, each client keeps its samples in its process.
The numbers are medians over all rounds except the first. *Start* is the time until the end of the first round.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

CLIENTS = 10
VARIANTS = ("sp", "Flower", "hand-written")


def recipe(rounds: int, epochs: int, backend: str) -> Any:
    """The recipe of all variants."""
    import fl_labelskew_plugins as fl

    changes = {"train_args.comm_round": rounds, "train_args.epochs": epochs, "method_args.method": "fedavg"}
    return fl.load("quickstart", {**changes, "comm_args.backend": backend, "validation_args.personalised": False})


def ours(rounds: int, epochs: int, backend: str, folder: Path) -> list[float]:
    """Run one of our runtimes; the end of each round in seconds after the start."""
    import fl_labelskew_plugins as fl

    start_time = time.time()
    fl.run(recipe(rounds, epochs, backend), folder, quiet=True, host="none")
    first = (folder / "environment.json").stat().st_mtime - start_time
    seconds = [json.loads(line)["seconds"] for line in (folder / "timings.jsonl").read_text().splitlines()]
    return [first + sum(seconds[: i + 1]) for i in range(rounds)]


def hand_written(rounds: int, epochs: int) -> list[float]:
    """Run the hand-written app; the end of each round in seconds after the start."""
    import torch
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fl_labelskew_plugins.recipe.compatibility import flower
    from fl_labelskew_plugins.runs.session import build

    flower()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    client, server, ends, start_time = ClientApp(), ServerApp(), list[float](), time.time()
    settings = recipe(rounds, epochs, "sp")

    @client.train()
    def train(message: Message, context: Context) -> Message:
        import builtins

        cache = vars(builtins)  # one per process; Ray sends this function again for each message
        session = cache["_session"] = cache.get("_session") or build(settings)
        trainer, client_number = session.trainer, int(context.node_config["partition-id"])
        model, rows = trainer.model, trainer.indices[client_number]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.train()
        for _ in range(epochs):
            for batch in rows[torch.randperm(len(rows))].split(16):
                optimizer.zero_grad()
                logits, labels = model(trainer.train.inputs(batch)), trainer.train.y[batch]
                torch.nn.functional.cross_entropy(logits, labels).backward()
                optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "size": ConfigRecord({"samples": len(rows)})}
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        session = build(settings)
        weights = dict(session.start)
        while len(nodes := list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        for _ in range(rounds):
            sent = [Message(RecordDict({"arrays": ArrayRecord(weights)}), node, "train") for node in nodes]
            pending, replies = {*grid.push_messages(sent)}, list[Message]()
            while pending:
                replies += grid.pull_messages(pending)
                pending -= {reply.metadata.reply_to_message_id for reply in replies}
                time.sleep(0.05)
            total = sum(reply.content["size"]["samples"] for reply in replies)
            uploads = [
                (reply.content["arrays"].to_torch_state_dict(), reply.content["size"]["samples"] / total)
                for reply in replies
            ]
            weights = {key: sum(upload[key] * share for upload, share in uploads) for key in weights}
            session.trainer.predict(weights=weights)
            ends.append(time.time() - start_time)

    config = {
        "init_args": {"log_to_driver": False, "logging_level": "CRITICAL"},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, CLIENTS, backend_config=config)
    return ends


def main() -> None:
    """Parse the options, run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a check in one minute")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run")
    parser.add_argument("--epochs", type=int, nargs="*", default=[2, 40], help="local epochs; one table row per number")
    parser.add_argument("--variant", choices=VARIANTS, help="run only this variant, and print its times")
    options = parser.parse_args()
    rounds, numbers = (2, [1]) if options.tiny else (options.rounds, options.epochs)
    if options.variant:
        with tempfile.TemporaryDirectory() as folder:
            by_hand = options.variant == VARIANTS[-1]
            args = rounds, options.epochs[0]
            ends = hand_written(*args) if by_hand else ours(*args, options.variant, Path(folder) / "run")
        print(json.dumps(ends))
        return
    print("| local epochs | variant | start, s | s per round | / sp |\n|---|---|---|---|---|")
    for epochs in numbers:
        base = 0.0
        for variant in VARIANTS:
            arguments = ["--variant", variant, "--rounds", str(rounds), "--epochs", str(epochs)]
            result = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
            ends = json.loads(result.stdout.splitlines()[-1])
            seconds = statistics.median(b - a for a, b in pairwise(ends))
            base = base or seconds
            print(f"| {epochs} | {variant} | {ends[0]:.1f} | {seconds:.2f} | {seconds / base:.1f} |", flush=True)


if __name__ == "__main__":
    main()
