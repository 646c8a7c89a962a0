"""Time that a round on ISIC 2019 waits for pictures, with synthetic pictures in FLamby's layout.

    python benchmarks/isic_loader.py                 # 2,000 pictures, EfficientNet-b0: about 6 minutes on two cores
    python benchmarks/isic_loader.py --images 240    # fewer pictures
    python benchmarks/isic_loader.py --gpu           # on the first GPU
    python benchmarks/isic_loader.py --tiny          # seconds: only a check, with a linear model

It runs one round of recipes/fedmr_isic2019.yaml with one local epoch: six clients train and compute prototypes, and the
global model is tested. Before this round, every picture is read once. So the files are in memory, the reading processes
are started, and one-time work is complete. *Waiting* is the time in which training waited for a batch.
"""

import argparse
import tempfile
import time
from pathlib import Path

RECIPE = Path(__file__).parent.parent / "recipes" / "fedmr_isic2019.yaml"


def main() -> None:
    """Parse the options, measure a round, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="number of pictures; default: 2000")
    parser.add_argument("--gpu", action="store_true", help="train on the first GPU")
    parser.add_argument("--workers", default="null", help="number of decoding processes; default: the recipe's")
    parser.add_argument("--tiny", action="store_true", help="a check with few pictures and a linear model, in seconds")
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
        overrides = {
            "data_args.data_cache_dir": str(tree),
            "train_args.epochs": "1",
            "device_args.using_gpu": str(options.gpu).lower(),
            "device_args.loader_workers": options.workers,
        }
        if options.tiny:
            overrides["model_args.model"] = "logistic"
        built = session.build(parse.load(RECIPE, [f"{key}={value}" for key, value in overrides.items()]))
        local = built.trainer
        reader = local.train._reader  # type: ignore[union-attr]
        for part in (local.train, local.test):
            for _ in part.stream([slice(0, len(part.y))]):
                pass
        times = {}
        for name, client in [*((f"client {k}", k) for k in range(6)), ("test", None)]:
            start_time, waited_before = time.perf_counter(), reader.waited
            if client is None:
                local.predict(weights=built.start)
            else:
                fit(local, client, 0, built.start, times_selected=1)
            if local.device.type == "cuda":
                torch.cuda.synchronize()
            times[name] = (time.perf_counter() - start_time, reader.waited - waited_before)
        print("| part | samples | s | waiting, s | share |\n|---|---|---|---|---|")
        sizes = [*built.sizes, len(local.test.y)]
        total = [sum(column) for column in zip(*times.values(), strict=True)]
        for (name, (seconds, waiting)), size in zip(
            [*times.items(), ("round", tuple(total))], [*sizes, sum(sizes)], strict=True
        ):
            print(f"| {name} | {size} | {seconds:.1f} | {waiting:.2f} | {100 * waiting / seconds:.1f} % |")


if __name__ == "__main__":
    main()
