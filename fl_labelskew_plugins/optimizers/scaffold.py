r"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Algorithm 1 with option II; option I, the gradient at the server's weights, is omitted. A local step follows ``g(y) -
c_k + c`` (line 10). Afterwards the control variate becomes (line 12)

.. math:: c_k^+ = c_k - c + \frac{x - y_k}{K \eta}

and the server adds the mean change of the weights, times ``server_lr``, to its own (line 16), and ``|S| / N`` times the
mean change of the control variates to ``c`` (line 17). With momentum, ``K`` is the sum of the coefficients of
gradients, as in FedNova. Weight decay, and FedML's SCAFFOLD: docs/mixing.md.
"""

from collections.abc import Mapping

import torch
from fl_labelskew_registry.contracts import Aggregated, LocalWork, Optimizer
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import keep_private, sum_of_coefficients


class SCAFFOLD(Optimizer):
    """Control variates against client drift."""

    class Params(params.Params):
        server_lr: float = Field(1.0, gt=0, description="eta_g, the server's learning rate")

    paper = (
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, https://arxiv.org/abs/1910.06378"
    )
    aggregation = "uniform"
    client_optimizers = ("sgd",)

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        return parameters

    def before_round(self, work: LocalWork) -> None:
        """Compute ``c - c_k``."""
        client = work.client
        zeros = {name: torch.zeros_like(start) for name, start in work.start.items()}
        variate = {name: value.to(zeros[name]) for name, value in client.state.items()} or zeros
        shared = client.shared or zeros
        client.scratch["variate"] = variate
        client.scratch["correction"] = {name: shared[name] - variate[name] for name in zeros}

    def correct(self, work: LocalWork) -> None:
        """Line 10."""
        gradients, correction = work.gradients(), work.client.scratch["correction"]
        torch._foreach_add_(list(gradients.values()), [correction[name] for name in gradients])

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> dict[str, Tensor]:
        """Line 12; send the change of the control variate (line 13)."""
        client = work.client
        variate, correction = client.scratch["variate"], client.scratch["correction"]
        step = work.learning_rate * sum_of_coefficients(work)
        new = {n: (start - upload[n]) / step - correction[n] for n, start in work.start.items()}
        keep_private(client, "", new)
        return {n: new[n] - variate[n] for n in new}

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        """Lines 16 and 17."""
        new, share = dict(round.mean), round.clients / round.federation.num_clients
        for name in round.parameters:
            old = round.shared.get(name, torch.zeros_like(round.old[name]))
            round.shared[name] = old + share * round.contributions[name]
            if self.params.server_lr != 1:
                new[name] = round.old[name] + self.params.server_lr * (round.mean[name] - round.old[name])
        return new
