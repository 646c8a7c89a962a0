"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor. NeurIPS 2020. https://arxiv.org/abs/2007.07481

Equation 6: a client's change is divided by ``||a_k||_1``, the sum of the coefficients that its local optimiser gives to
its gradients, so that a client with more steps does not pull harder; the mean is multiplied by ``tau_eff = sum p_k
tau_k``, with ``tau_k = ||a_k||_1``, or the number of steps with a proximal term (section 5, and the authors' code).
``gmf`` is the server's ("slow") momentum over the rounds.

The authors' code, which the host has copied, adds both the momentum's and the proximal term's coefficients where both
are on; here the coefficients are those of the two together. A client sends its normalised change as such: added to the
start weights, it would be rounded as they are, and the server multiplies it by ``tau_eff``. Where
``proxy_aggregation: class`` weighs the classifier's rows, ``tau_eff`` is the same for all of them. Neutral setting:
equal steps everywhere, ``mu = 0`` and ``gmf = 0`` are FedAvg but for rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fl_labelskew_registry.contracts import Optimizer
from pydantic import Field

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import add_proximal, sum_of_coefficients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fl_labelskew_registry.contracts import Aggregated, LocalWork
    from torch import Tensor


class FedNova(Optimizer):
    """Normalised averaging."""

    class Params(params.Params):
        """Options of FedNova, under the host's names."""

        mu: float = Field(0.0, ge=0, description="strength of a proximal term; 0: none")
        gmf: float = Field(0.0, ge=0, lt=1, description="server momentum over the rounds; 0: none")

    paper = (
        "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020, "
        "https://arxiv.org/abs/2007.07481"
    )
    client_optimizers = ("sgd",)
    changes_upload = True
    sends_change = True

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """One number."""
        return {"tau": ()}

    def correct(self, work: LocalWork) -> None:
        """The proximal term's gradient, where there is one."""
        add_proximal(work, self.params.mu)

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> dict[str, Tensor]:
        """The normalised change in place of the weights; ``tau_k`` rides with it."""
        total = sum_of_coefficients(work, mu=self.params.mu)
        for name, start in work.start.items():
            upload[name] = (upload[name] - start) / total
        tau = work.steps if self.params.mu != 0 else total
        return {"tau": torch.tensor(tau, dtype=torch.float64)}

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        """Equation 6, with ``gmf``."""
        tau, gmf = round.contributions["tau"].item(), self.params.gmf
        new = dict(round.mean)
        for name in round.parameters:
            change = round.mean[name] * tau
            if gmf != 0:
                if name in round.memory:
                    change = change + gmf * round.memory[name]
                round.memory[name] = change
            new[name] = round.old[name] + change
        return new
