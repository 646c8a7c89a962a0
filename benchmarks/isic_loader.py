"""How long a round on ISIC 2019 waits for pictures, on a made-up tree in FLamby's layout.

    python benchmarks/isic_loader.py                 # 2,000 pictures, EfficientNet-b0: about 6 minutes on two cores
    python benchmarks/isic_loader.py --images 240    # less
    python benchmarks/isic_loader.py --gpu           # on the first GPU
    python benchmarks/isic_loader.py --tiny          # seconds: that it works; a linear model; no real numbers

It runs one round of recipes/fedmr_isic2019.yaml with one local epoch: six clients train, prototypes are computed, and
the global model is tested. Before that every picture is read once, so that files are in memory, processes up, and what
is done once is done. *Waiting* is the time in which training had no batch to go on with.
"""

import argparse
import tempfile
import time
from pathlib import Path

RECIPE = Path(__file__).parent.parent / "recipes" / "fedmr_isic2019.yaml"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--workers", default="null", help="processes that decode; default: the recipe's")
    parser.add_argument("--tiny", action="store_true", help="a try with few pictures and a linear model, in seconds")
    options = parser.parse_args()
    import torch

    from fl_labelskew_plugins.data import fakes
    from fl_labelskew_plugins.data.isic2019 import ISIC2019
    from fl_labelskew_plugins.engine.turn import fit
    from fl_labelskew_plugins.recipe import parse
    from fl_labelskew_plugins.runs import session

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "isic"
        fakes.write(ISIC2019(), tree, samples=80 if options.tiny else options.images)
        sets = {
            "data_args.data_cache_dir": str(tree),
            "train_args.epochs": "1",
            "device_args.using_gpu": str(options.gpu).lower(),
            "device_args.loader_workers": options.workers,
        }
        if options.tiny:
            sets["model_args.model"] = "logistic"
        made = session.build(parse.load(RECIPE, [f"{key}={value}" for key, value in sets.items()]))
        local = made.trainer
        reader = local.train._reader  # type: ignore[union-attr]
        for part in (local.train, local.test):
            for _ in part.stream([slice(0, len(part.y))]):
                pass
        times = {}
        for name, client in [*((f"client {k}", k) for k in range(6)), ("test", None)]:
            begun, waited = time.perf_counter(), reader.waited
            if client is None:
                local.predict(weights=made.start)
            else:
                fit(local, client, 0, made.start, times_selected=1)
            if local.device.type == "cuda":
                torch.cuda.synchronize()
            times[name] = (time.perf_counter() - begun, reader.waited - waited)
        print("| part | samples | s | waiting, s | share |\n|---|---|---|---|---|")
        sizes = [*made.sizes, len(local.test.y)]
        total = [sum(column) for column in zip(*times.values(), strict=True)]
        for (name, (seconds, waiting)), size in zip(
            [*times.items(), ("round", tuple(total))], [*sizes, sum(sizes)], strict=True
        ):
            print(f"| {name} | {size} | {seconds:.1f} | {waiting:.2f} | {100 * waiting / seconds:.1f} % |")


if __name__ == "__main__":
    main()
