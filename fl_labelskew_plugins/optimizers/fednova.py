"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

Equation 6: a client's change is divided by ``tau_k`` (:func:`.sum_of_coefficients`); the mean is multiplied by
``tau_eff = sum p_k tau_k``. Equal steps on all clients are FedAvg except for rounding. The proximal term of section 5
and the authors' server momentum are omitted.

A client sends the normalised change: adding it to the start weights would round it before the multiplication.
"""

from collections.abc import Mapping

import torch
from fl_labelskew_registry.contracts import Aggregated, LocalWork, Optimizer
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import sum_of_coefficients


class FedNova(Optimizer):
    """Normalised averaging."""

    Params = params.Params
    paper = (
        "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020, "
        "https://arxiv.org/abs/2007.07481"
    )
    client_optimizers = ("sgd",)
    changes_upload = True
    sends_change = True

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {"tau": ()}

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> dict[str, Tensor]:
        tau = sum_of_coefficients(work)
        for name, start in work.start.items():
            upload[name] = (upload[name] - start) / tau
        return {"tau": torch.tensor(tau, dtype=torch.float64)}

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        tau = round.contributions["tau"].item()
        return round.mean | {name: round.old[name] + round.mean[name] * tau for name in round.parameters}
