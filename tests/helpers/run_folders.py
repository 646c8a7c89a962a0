"""Run folders made by hand, for reports."""

import json

from fl_labelskew_plugins.recipe import yaml


def resolved(seed=0, method="fedavg", partition="iid", optimizer="FedAvg", train=None, **method_args):
    return {
        "common_args": {"random_seed": seed},
        "data_args": {"dataset": "digits"},
        "partition_args": {"partition_method": partition},
        "train_args": {"federated_optimizer": optimizer, **(train or {})},
        "method_args": {"method": method, **method_args},
        "tracking_args": {"run_dir": f"runs{seed}"},
    }


def folder(path, recipe, accuracies, personal=None, seconds=(), **more):
    path.mkdir()
    (path / "recipe.yaml").write_text(yaml.write(recipe))
    lines = [{"round": r, **more} | ({} if a is None else {"accuracy": a}) for r, a in enumerate(accuracies)]
    if personal is not None:
        lines[-1]["personalised_accuracy"] = personal
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timings = [{"round": r, "seconds": s, "peak_mb": 500.0 + r} for r, s in enumerate(seconds)]
    if timings:
        (path / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    return path
