"""CCVR: No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data.

The paper was not available to us, so no equation numbers are given, and the numbers of steps are ours.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from fl_labelskew_registry.contracts import ClientView, Federation, Method, ServerView, Total
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine import log

SUMS, SQUARES, COUNTS = "sums", "squares", "counts"

LARGEST = 1e12  # covariance of features; a client may send any sums


def moments(sums: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and unbiased covariance of the features of each class, from sums over all clients.

    .. math:: \mu_c = \frac{1}{n_c} \sum_i z_i, \quad
        \Sigma_c = \frac{1}{n_c - 1} \left(\sum_i z_i z_i^\top - n_c \, \mu_c \mu_c^\top\right)

    Args:
        sums: ``(C, d)``.
        squares: ``(C, d, d)``, sums of ``z z^T``.
        counts: ``(C,)``.

    Returns:
        ``(C, d)`` and ``(C, d, d)``; the covariance of a class with fewer than two samples is 0.

    >>> z = torch.tensor([[1.0], [3.0]])
    >>> moments(z.sum(0)[None], (z.T @ z)[None], torch.tensor([2]))
    (tensor([[2.]]), tensor([[[2.]]]))
    """
    n = counts.to(sums)[:, None]
    means = sums / n.clamp(min=1)
    centred = squares - n[..., None] * means[:, :, None] * means[:, None, :]
    return means, centred / (n - 1).clamp(min=1)[..., None] * (n > 1)[..., None]


def virtual_features(means: Tensor, covariances: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Normally distributed features ``(C, number, d)`` with these moments of each class."""
    values, vectors = torch.linalg.eigh(covariances)
    roots = vectors * values.clamp(min=0).sqrt()[:, None, :]  # (C, d, d)
    draws = torch.randn(len(means), number, means.shape[1], generator=generator, dtype=means.dtype)
    features: Tensor = means[:, None] + draws.to(means.device) @ roots.mT
    return features


class CCVR(Method):
    r"""Classifier calibration with virtual representations.

    Training is that of FedAvg, or of the methods that it is combined with. The last round is a closing exchange:
    each client computes features with the final model, and sends for each class the sum of the features and the sum of
    their pairwise products. From these, the server computes mean and covariance of each class, draws virtual features

    .. math:: \hat z_c \sim \mathcal{N}(\mu_c, \Sigma_c)

    with equally many of each class, and trains the classifier with them. The feature extractor does not change.
    """

    class Params(params.Params):
        virtual: int = Field(500, gt=0, description="virtual features of each class")
        epochs: int = Field(10, ge=0, description="passes over the virtual features; 0: no calibration")
        rate: float = Field(0.01, gt=0, description="learning rate of SGD with momentum 0.9 and batches of 64")

    paper = (
        "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data, NeurIPS 2021, "
        "https://arxiv.org/abs/2106.05001"
    )
    sends: ClassVar[Mapping[str, str]] = {SUMS: "prototypes", SQUARES: "prototypes", COUNTS: "counts"}
    uses_rounds = True
    closing = True

    def contribution_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        classes, d = federation.num_classes, federation.num_features
        return {SUMS: (classes, d), SQUARES: (classes, d, d), COUNTS: (classes,)}

    def contribute(self, client: ClientView) -> dict[str, Tensor]:
        if client.round < client.federation.rounds - 1:
            return {}
        if client.features is None:
            raise RuntimeError("Expected `client.features` to be a function but got None: the sums are made with it.")
        features, labels = client.features()
        z, classes = features.double(), range(len(client.counts))
        by_class = [z[labels == c] for c in classes]
        squares = torch.stack([part.T @ part for part in by_class])
        return {SUMS: torch.stack([part.sum(0) for part in by_class]), SQUARES: squares, COUNTS: client.counts}

    def combine(self, total: Total, shared: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not total.closing:
            return shared
        if missing := [name for name in (SUMS, SQUARES, COUNTS) if name not in total.tensors]:
            log.warn(f"CCVR: no {missing[0]} in the closing exchange; the classifier stays as it is")
            return shared
        counts = total.tensors[COUNTS]
        if counts.min() < 0 or counts.max() <= 0 or (total.samples and counts.sum() > total.samples):
            problem = "the counts in the closing exchange are negative, all 0, or more than the training samples"
            log.warn(f"CCVR: {problem}; the classifier stays as it is")
            return shared
        return {**shared, **{name: total.tensors[name] for name in (SUMS, SQUARES, COUNTS)}}

    def after_aggregation(self, weights: dict[str, Tensor], server: ServerView) -> dict[str, Tensor]:
        """In the closing exchange, train the classifier; classes without samples keep their logits' weights."""
        shared = server.shared
        if SQUARES not in shared:
            return weights
        held = shared[COUNTS] > 0
        sums, squares = shared[SUMS].double(), shared[SQUARES].double()
        means, covariances = moments(sums[held], squares[held], shared[COUNTS][held])
        names = [name for name in ("classifier.weight", "classifier.bias") if name in weights]
        if not covariances.abs().max() < LARGEST:
            log.warn(
                "CCVR: the covariances of the features are too large or not numbers; the classifier stays as it is"
            )
            return weights
        drawn = virtual_features(means, covariances, self.params.virtual, server.generator)
        features = drawn.flatten(0, 1).to(weights[names[0]])
        labels = held.nonzero()[:, 0].to(features.device).repeat_interleave(self.params.virtual)
        trained = [weights[name].clone().requires_grad_() for name in names]
        optimizer = torch.optim.SGD(trained, lr=self.params.rate, momentum=0.9)
        with torch.enable_grad():
            for _ in range(self.params.epochs):
                for index in torch.randperm(len(labels), generator=server.generator).to(features.device).split(64):  # type: ignore[no-untyped-call]
                    optimizer.zero_grad()
                    logits = torch.nn.functional.linear(features[index], *trained)
                    cross_entropy(logits, labels[index]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return {**weights, **{name: value.detach() for name, value in zip(names, trained, strict=True)}}

    def deviations(self) -> list[str]:
        return [
            "virtual, epochs and rate are ours; the paper calibrates after the last round, here it is the last round"
        ]
