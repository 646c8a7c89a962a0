"""t-SNE of the features after the last round, as in FedLC (figure 7)."""

from __future__ import annotations

from typing import Any

import torch
from fl_labelskew_registry import mistake
from torch import Tensor

from fl_labelskew_plugins import plots, seeds
from fl_labelskew_plugins.diagnostics.points import Points

SMALLEST = 8


def embedding(features: Tensor, seed: int) -> Tensor:
    """t-SNE of features ``(n, d)`` as ``(n, 2)``, with perplexity 30 or at most ``(n - 1) / 3``; deterministic.

    van der Maaten and Hinton, JMLR 2008, in scikit-learn's implementation.
    """
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    made = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features.numpy())
    return torch.from_numpy(made)


class TSNE(Points):
    """Embedded test features of the last round's first client and of the global model."""

    stages = ("local", "global")
    width = 5.6

    def check(self) -> None:
        """Raise LabelSkewError if there are too few test samples."""
        super().check()
        if (n := len(self.run.trainer.test.y)) < SMALLEST:
            needs = f"tsne needs at least {SMALLEST} test samples, the data set has {n}"
            raise mistake("tracking_args.diagnostics", needs, "another diagnostic")

    def wanted(self, round: int) -> bool:
        """Only the last round: an embedding takes seconds."""
        return round == self.run.rounds - 1

    def place(self, features: Tensor) -> Tensor:
        """Embed the features."""
        return embedding(features, seeds.torch_seed(self.run.trainer.federation.seed, "t-SNE") % 2**31)

    @staticmethod
    def panel(axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float) -> None:
        """Draw points without scales, which have no meaning; missing classes are hollow."""
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies), solid=held, scale=scale)
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
