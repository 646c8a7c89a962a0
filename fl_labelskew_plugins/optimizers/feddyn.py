r"""FedDyn: Federated Learning Based on Dynamic Regularization.

Algorithm 1. A client minimises (eq. 1)

.. math:: L_k(\theta) - \langle \nabla_k, \theta \rangle + \frac\alpha2 \lVert \theta - \theta^{t-1} \rVert^2

and then sets ``grad_k <- grad_k - alpha (theta_k - theta^{t-1})``. The server keeps ``h <- h - alpha/m sum (theta_k -
theta^{t-1})`` over the round's clients, with ``m`` all clients, and sets ``theta <- mean theta_k - h / alpha``, a
uniform mean.

FedMR's tables 9 and 10 have ``alpha`` 1e-6 to 1e-4 with 10 local epochs. FedML's FedDyn: docs/mixing.md.
"""

import torch
from fl_labelskew_registry.contracts import Aggregated, LocalWork, Optimizer
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import add_proximal


class FedDyn(Optimizer):
    """Dynamic regularisation."""

    class Params(params.Params):
        feddyn_alpha: float = Field(0.01, gt=0, description="alpha, strength of the regulariser")

    paper = "Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263"
    aggregation = "uniform"

    def before_round(self, work: LocalWork) -> None:
        work.client.scratch["gradient"] = {n: v.to(work.start[n]) for n, v in work.client.state.items()}

    def correct(self, work: LocalWork) -> None:
        """Gradient of the two penalties of equation 1."""
        add_proximal(work, self.params.feddyn_alpha)
        if last := work.client.scratch["gradient"]:
            gradients = work.gradients()
            torch._foreach_sub_(list(gradients.values()), [last[name] for name in gradients])

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> dict[str, Tensor]:
        last = work.client.scratch["gradient"]
        for name, start in work.start.items():
            change = self.params.feddyn_alpha * (upload[name] - start)
            work.client.state[name] = (last[name] - change if last else -change).to("cpu", copy=True)
        return {}

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        new, alpha = dict(round.mean), self.params.feddyn_alpha
        share = round.clients / round.federation.num_clients
        for name in round.parameters:
            change = alpha * share * round.change(name)
            h = round.memory[name] - change if name in round.memory else -change
            round.memory[name] = h
            new[name] = round.mean[name] - h / alpha
        return new
