"""FedProx: Federated Optimization in Heterogeneous Networks.

Equation 2: a client minimises ``F_k(w) + mu/2 ||w - w_t||^2``. ``fedprox_mu = 0`` is FedAvg, bit for bit.
"""

from fl_labelskew_registry.contracts import LocalWork, Optimizer
from pydantic import Field

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import add_proximal


class FedProx(Optimizer):
    """A proximal term in local training."""

    class Params(params.Params):
        fedprox_mu: float = Field(0.01, ge=0, description="strength mu of the proximal term; 0: FedAvg")

    paper = "Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127"

    def correct(self, work: LocalWork) -> None:
        add_proximal(work, self.params.fedprox_mu)
