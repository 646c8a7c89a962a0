"""Reweighting: cross-entropy with class weights that match a client's class frequencies to the federation's.

FedShift's authors try this first ("make P = P_i", section 3.2) and find it far below FedAvg (table 1). If the classes
of a client are equally frequent, as with pcdd, all weights are equal and only lower the learning rate.
"""

from fl_labelskew_registry.contracts import Batch, ClientView
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedshift import KnownPrior, PriorParams, smoothed_distribution
from fl_labelskew_plugins.ops import check_per_class, full, on_device


def importance_weights(counts: Tensor, prior: Tensor, *, smoothing: float | Tensor) -> Tensor:
    """Weight of a sample of each class, ``P(c) / P_k(c)``, as ``(C,)``.

    Args:
        counts: ``(C,)``, the client's training samples per class.
        prior: ``(C,)``, from ``global_prior``, with the same smoothing.
        smoothing: ``a`` above 0: a number, or a tensor of shape ``()`` or ``(1,)``.

    >>> importance_weights(torch.tensor([3, 0]), torch.tensor([0.5, 0.5]), smoothing=1.0)
    tensor([0.6250, 2.5000])
    """
    return prior / smoothed_distribution(counts.to(prior.dtype), smoothing=smoothing)


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of logits ``(B, C)`` with a weight above 0 for each class, ``(C,)``.

    >>> weighted_cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([1.0, 3.0]))
    tensor(1.3863)
    """
    check_per_class("weights", weights, logits)
    return cross_entropy(logits, labels, weight=weights) * weights[labels].mean()


class Reweighting(KnownPrior):
    r"""Weighted cross-entropy in local training.

    The weight of a class is its share in the federation divided by its share at the client; both are smoothed as in
    FedShift:

    .. math:: \mathcal{L} = \frac{1}{B} \sum_n w_{y_n} \, \ell_n, \quad w_c = \frac{P(c)}{P_k(c)}

    With ``smoothing: 1.0e+30``, all weights are 1, and the loss is bit-identical to plain cross-entropy.
    """

    Params = PriorParams
    paper = (
        "Reweighting, in: Federated Learning with Classifier Shift for Class Imbalance, arXiv 2023, "
        "https://arxiv.org/abs/2304.04972"
    )

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        logits = full(self.calibrate(batch.logits, client))
        counts = on_device(client, "counts", client.counts, logits.device)
        prior = on_device(client, "prior", client.shared["prior"], logits.device).to(logits.dtype)
        weights = importance_weights(counts, prior, smoothing=self.smoothing_of(counts))
        return {"cross_entropy": weighted_cross_entropy(logits, batch.labels, weights)}
