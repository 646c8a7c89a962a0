r"""FedSAM: sharpness-aware minimisation in local training.

The method is also that of D. Caldarola, B. Caputo, M. Ciccone, ECCV 2022.

Each local step uses the gradient at weights that are moved uphill:

.. math:: w \leftarrow w - \eta\, \nabla F_k\left(w + \rho\, \frac{\nabla F_k(w)}{\lVert \nabla F_k(w) \rVert}\right)

Both gradients have the same batch and the same random draws (dropout). The norm is that of all trained parameters.
Weight decay is that of ``w``, as in the authors' code. ``sam_rho = 0`` is FedAvg, bit for bit. The papers were not
available to us, so no equation numbers are given; the formula is that of the code of both groups (which adds 1e-7 or
1e-16 to the norm; here 1e-12). Adaptive SAM (FedASAM) and MoFedSAM are omitted.
"""

import torch
from fl_labelskew_registry.contracts import LocalWork, Optimizer
from pydantic import Field

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import frozen_model


class FedSAM(Optimizer):
    """Sharpness-aware local steps."""

    class Params(params.Params):
        sam_rho: float = Field(0.05, ge=0, description="rho, length of the move before each gradient; 0: FedAvg")

    paper = (
        "Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, https://arxiv.org/abs/2206.02618"
    )

    def before_round(self, work: LocalWork) -> None:
        if self.params.sam_rho:
            work.client.scratch["moved"] = frozen_model(work.client).requires_grad_()

    @torch.no_grad()
    def correct(self, work: LocalWork) -> None:
        if not self.params.sam_rho:
            return
        moved = work.client.scratch["moved"]
        gradients, by_name = work.gradients(), dict(moved.named_parameters())
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients.values()))))
        scale = self.params.sam_rho / (norm + 1e-12)
        for name, gradient in gradients.items():
            by_name[name].copy_(work.parameters[name] + scale * gradient)
        with torch.enable_grad():
            at_moved = torch.autograd.grad(work.loss(moved), [by_name[name] for name in gradients])
        torch._foreach_copy_(list(gradients.values()), at_moved)
