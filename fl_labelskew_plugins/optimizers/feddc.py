r"""FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction.

Section 3 and algorithm 1. A client keeps its drift ``h_k`` and minimises

.. math:: L_k(\theta) + \frac\alpha2 \lVert h_k + \theta - w \rVert^2 + \frac{1}{\eta K} \langle \theta, g_k - g \rangle

with ``g_k`` its last change and ``g`` the mean change of the last round. Then ``h_k <- h_k + (theta_k - w)``, and the
server's next weights are the mean of ``theta_k + h_k``. With ``feddc_alpha = 0``, drifts are not used.

The paper was not available to us. The client keeps ``-g_k / (eta K)``, with ``K`` as in SCAFFOLD; their code keeps
control variates, adds the mean drift of all clients on the server, and scales ``alpha`` for clients of unequal size.
FedMR's tables 9 and 10 have (we assume) ``alpha`` 1e-5 to 0.01 with 10 epochs per round.
"""

from collections.abc import Mapping

import torch
from fl_labelskew_registry.contracts import Aggregated, LocalWork, Optimizer
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import add_proximal, keep_private, sum_of_coefficients
from fl_labelskew_plugins.tensors import group, joined


class FedDC(Optimizer):
    """Decoupling and correction of local drift."""

    class Params(params.Params):
        feddc_alpha: float = Field(
            0.01,
            ge=0,
            description="alpha, strength of the drift's penalty (authors: CIFAR10 0.01, MNIST 0.1); 0: no drift",
        )

    paper = (
        "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022, "
        "https://arxiv.org/abs/2203.11751"
    )
    client_optimizers = ("sgd",)
    changes_upload = True

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        return parameters

    def before_round(self, work: LocalWork) -> None:
        """``alpha h_k`` and ``(g_k - g) / (eta K)``, constant during the round."""
        client, alpha = work.client, self.params.feddc_alpha
        zeros = {name: torch.zeros_like(start) for name, start in work.start.items()}
        drift, mean = (
            {n: v.to(zeros[n]) for n, v in group(client.state, part).items()} or zeros for part in ("drift", "mean")
        )
        shared = client.shared or zeros
        client.scratch["drift"] = drift
        client.scratch["added"] = {n: alpha * drift[n] + (shared[n] - mean[n]) for n in zeros}

    def correct(self, work: LocalWork) -> None:
        add_proximal(work, self.params.feddc_alpha)
        gradients, added = work.gradients(), work.client.scratch["added"]
        torch._foreach_add_(list(gradients.values()), [added[name] for name in gradients])

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> dict[str, Tensor]:
        client = work.client
        moved = {name: upload[name] - start for name, start in work.start.items()}
        step = work.learning_rate * sum_of_coefficients(work)
        kept = {"mean": {name: change / -step for name, change in moved.items()}}
        if self.params.feddc_alpha:
            kept["drift"] = {name: client.scratch["drift"][name] + change for name, change in moved.items()}
            upload.update({name: upload[name] + h for name, h in kept["drift"].items()})
        keep_private(client, "", joined(**kept))
        return kept["mean"]

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        round.shared.update(round.contributions)
        return round.mean
