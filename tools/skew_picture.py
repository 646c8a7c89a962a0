"""Draw the picture of label skew in the README: the classes of each client, and the effect on accuracy.

    python tools/skew_picture.py IID SKEWED CALIBRATED

reads three runs of 20 rounds and writes ``docs/pictures/label_skew.png``. Each run takes about two minutes:

    labelskew run small/fedavg_fmnist --set partition_args.partition_method=iid --run-dir IID
    labelskew run small/fedavg_fmnist --run-dir SKEWED
    labelskew run small/fedlc_fmnist --set method_args.tau=5 --run-dir CALIBRATED
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.plots import heat

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "label_skew.png"
LABELS = ("FedAvg, all classes at each client", "FedAvg, label skew", "FedLC (tau 5), label skew")


def main(folders: list[str]) -> None:
    """Draw the class counts of the second run, and the accuracy of all three runs."""
    runs = [fl.load_run(folder) for folder in folders]
    with mpl.rc_context({"font.size": 9}):
        picture = Figure(figsize=(9, 3), layout="constrained")
        clients, curves = picture.subplots(1, 2, width_ratios=(1, 1.4))
        counts = runs[1].partition
        image = heat(clients, counts.to_numpy())
        clients.set(title="Label skew: two classes per client", ylabel="class", xticks=range(len(counts)))
        clients.set_yticks(range(counts.shape[1]), counts.columns, fontsize=7)
        picture.colorbar(image, ax=clients, label="training samples")
        for label, run, colour in zip(LABELS, runs, ("#228833", "#ee6677", "#4477aa"), strict=True):
            rounds = run.metrics.index + 1
            curves.plot(rounds, 100 * run.metrics["accuracy"], label=label, color=colour)
        curves.set(title="Effect on the global model", xlabel="round", ylabel="accuracy, %", ylim=(0, 100))
        curves.set_xticks(range(0, len(rounds) + 1, 5))
        curves.legend(frameon=False, loc="lower right")
        picture.savefig(OUT, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])
