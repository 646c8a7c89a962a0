"""Diagnostics that draw features of test samples at up to three stages of a round: FedRS, FedLC, FedMR and MAP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from fl_labelskew_registry import mistake
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize

from fl_labelskew_plugins import plots, seeds
from fl_labelskew_plugins.diagnostics.base import Diagnostic, RunInfo, some_test_samples, test_features
from fl_labelskew_plugins.ops import class_means
from fl_labelskew_plugins.tensors import Weights, save_atomic

MAX_SAMPLES = 1000
STAGE_TITLES = {"start": "client before training", "local": "client after training", "global": "global model"}
PANEL_WIDTH = 5.0  # inches, at which marks have their normal size
MIN_EMBEDDED = 8  # test samples for t-SNE


class Points(Diagnostic):
    """Features of test samples under the first client's weights and under the global ones, as in figure 4 of FedRS."""

    stages: ClassVar[Sequence[str]]  # of STAGE_TITLES
    three_d: ClassVar[bool] = False
    only_last: ClassVar[bool] = False  # round

    def __init__(self, name: str, run: RunInfo, folder: Path) -> None:
        super().__init__(name, run, folder)
        self._index = some_test_samples(run.trainer, MAX_SAMPLES)
        self._kept: dict[str, Tensor] = {}

    def place(self, features: Tensor) -> Tensor:
        """Map features ``(n, d)`` to points ``(n, 2)`` or ``(n, 3)``."""
        return features

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        """Numbers of a stage, if any, from points, proxies ``(C, d)`` and labels ``(n,)``."""
        return {}

    @classmethod
    def panel(
        cls, axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float
    ) -> None:
        """Draw a stage; classes that are not in ``held`` are hollow; ``scale``: size of the marks."""
        if cls.three_d:
            plots.sphere(axes)
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies), solid=held, scale=scale)

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        if not self._kept and (not self.only_last or round == self.run.trainer.federation.rounds - 1):
            self._kept["client"] = torch.tensor(client)
            self._add("start", start)
            self._add("local", upload)

    def aggregated(self, round: int, weights: Weights) -> None:
        if self._kept:
            self._add("global", weights)
            self.tensors.parent.mkdir(exist_ok=True)
            save_atomic({**self._kept, "labels": self._labels()}, self.tensors, private=False)
        self._kept = {}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        if self.tensors.exists():
            kept = load_file(self.tensors)
            title = f"{self.run.title}: {self.run.trainer.name(int(kept['client']))}"
            held = self.run.held(int(kept["client"]))
            draw_points(type(self), {title: ClientPoints(kept, held, self.run.class_names)}, self.picture)

    def _labels(self) -> Tensor:
        return self.run.trainer.test.y[self._index].cpu()

    def _add(self, stage: str, weights: Weights) -> None:
        if stage in self.stages:
            points = self.place(test_features(self.run.trainer, weights, self._index))
            proxies = weights["classifier.weight"].float().cpu()
            self._kept |= {f"{stage}.points": points, f"{stage}.proxies": proxies}
            if line := self.line(points, proxies, self._labels()):
                owner = {} if stage == "global" else {"client": int(self._kept["client"])}
                self.lines.append({"stage": stage, **owner, **line})


@dataclass(frozen=True)
class ClientPoints:
    """Stored tensors of :class:`Points`; ``held``: see :meth:`.RunInfo.held`."""

    kept: Mapping[str, Tensor]
    held: list[int]
    class_names: Sequence[str]

    def check(self, kind: type[Points]) -> None:
        """Raise ValueError, KeyError or IndexError if the tensors are not of this diagnostic."""
        labels = self.kept["labels"]
        for stage in kind.stages:
            points, classes = self.kept[f"{stage}.points"], len(self.kept[f"{stage}.proxies"])
            if points.shape != (len(labels), 3 if kind.three_d else 2) or labels.is_floating_point():
                raise ValueError("the shape of points or labels is wrong")
            if classes != len(self.class_names) or not set(labels.tolist()) <= set(range(classes)):
                raise ValueError("labels of unknown classes")


def draw_points(
    kind: type[Points], columns: Mapping[str, ClientPoints], path: Path, width: float | None = None
) -> None:
    """Draw stages in rows and runs, by title, in columns; ``width``: see :func:`.plots.panels`."""
    rows = {STAGE_TITLES[stage]: stage for stage in kind.stages}
    space = {"projection": "3d" if kind.three_d else None}
    legend: dict[int, tuple[Any, str]] = {}
    with plots.panels(list(rows), list(columns), width, height=0.9, share=False, subplot_kw=space) as made:
        for (row, column), axes in made.axes.items():
            run, stage, title = columns[column], rows[row], axes.get_ylabel()
            points, proxies = run.kept[f"{stage}.points"], run.kept[f"{stage}.proxies"]
            held = None if stage == "global" else run.held
            kind.panel(axes, points, proxies, run.kept["labels"], held, made.side / PANEL_WIDTH)
            plots.bare(axes, title)
            for handle, number in zip(*axes.get_legend_handles_labels(), strict=True):
                # later panels win: the global model's marks are solid
                legend[int(number)] = handle, run.class_names[int(number)]
        handles, texts = zip(*(legend[number] for number in sorted(legend)), strict=True)
        plots.legend_above(made.picture, handles, texts, handlelength=1.0, markerscale=PANEL_WIDTH / made.side)
        plots.save(made.picture, path, made.dpi)


def arrows(points: Tensor, proxies: Tensor, share: float = 0.5) -> Tensor:
    """Proxies ``(C, 2)``; the longest is ``share`` of the largest distance of a point (papers: scaled by 10).

    >>> arrows(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.5, 0.0]]))
    tensor([[0.0000, 2.5000],
            [1.2500, 0.0000]])
    """
    reach = torch.linalg.vector_norm(points, dim=1).max()
    longest = torch.linalg.vector_norm(proxies, dim=1).max()
    drawn: Tensor = proxies * (share * reach / longest.clamp_min(torch.finfo(proxies.dtype).tiny))
    return drawn


class Features2D(Points):
    """Test features and proxies: FedRS, figures 3, 4 and 12; MAP, figure 5."""

    num_features = 2
    stages = ("start", "local", "global")

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        means, counts = class_means(points, labels, len(proxies))
        rows = [mean if n else None for mean, n in zip(means.tolist(), counts.tolist(), strict=True)]
        return {"proxies": proxies.tolist(), "means": rows}

    @classmethod
    def panel(
        cls, axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float
    ) -> None:
        """Draw points, and proxies as arrows; those of missing classes are white, as in the papers."""
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies), scale=scale)
        for label, (x, y) in enumerate(arrows(points, proxies).tolist()):
            missing = held is not None and label not in held
            plots.arrow(axes, x, y, "white" if missing else plots.colour(label, len(proxies)), scale)
        axes.set_aspect("equal", adjustable="datalim")


def principal_shares(points: Tensor) -> list[float]:
    """Shares of the variance of points ``(n, d)`` along the principal directions; 0 if all points are equal.

    >>> principal_shares(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, -0.5, 0.0]]))
    [0.8, 0.2, 0.0]
    """
    centred = points.double() - points.double().mean(dim=0)
    variances = torch.linalg.svdvals(centred).square()
    shares: list[float] = (variances / variances.sum().clamp_min(1e-12)).tolist()
    return shares


class FeatureSphere(Points):
    """Test features on the unit sphere (FedMR, figure 1c; simulation in appendix B)."""

    num_features = 3
    stages = ("local", "global")
    three_d = True

    def place(self, features: Tensor) -> Tensor:
        return normalize(features, dim=1)

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"principal_shares": principal_shares(points)}


def embedding(features: Tensor, seed: int) -> Tensor:
    """t-SNE of features ``(n, d)`` as ``(n, 2)`` (van der Maaten and Hinton, JMLR 2008); deterministic."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    made = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features.numpy())
    return torch.from_numpy(made)


class TSNE(Points):
    """Embedded test features after the last round (FedLC, figure 7)."""

    stages = ("local", "global")
    only_last = True  # an embedding takes seconds

    def check(self) -> None:
        super().check()
        if (n := len(self.run.trainer.test.y)) < MIN_EMBEDDED:
            needs = f"tsne needs at least {MIN_EMBEDDED} test samples, the data set has {n}"
            raise mistake("tracking_args.diagnostics", needs, "another diagnostic")

    def place(self, features: Tensor) -> Tensor:
        return embedding(features, seeds.torch_seed(self.run.trainer.federation.seed, "t-SNE") % 2**31)
