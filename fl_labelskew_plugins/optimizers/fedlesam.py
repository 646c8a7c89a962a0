r"""FedLESAM: locally estimated global perturbations in sharpness-aware minimisation.

Each local step of round ``t`` uses the gradient at weights that are moved against the last change of the server's
model:

.. math:: w \leftarrow w - \eta\, \nabla F_k(w + \delta_k),\qquad
          \delta_k = \rho\, \frac{w^{old}_k - w^t}{\lVert w^{old}_k - w^t \rVert}

``lesam_form`` selects how ``w^old`` is known:

- ``paper``: the client keeps the model that it received when it last took part. The norm is Euclidean.
- ``code`` (MediaBrain-SJTU/FedLESAM): the server sends the change of its last round with the model. The norm is the
  sum of the norms of all tensors, and thus larger.

Without ``w^old``, ``delta_k`` is 0. ``sam_rho = 0`` is FedAvg, bit for bit. Weight decay is that of ``w``; a clip of
gradients includes the decay of ``delta_k``. The paper was not available to us, so no equation numbers are given.
FedLESAM-S and FedLESAM-D, which add SCAFFOLD and FedDyn, are omitted.
"""

from typing import Literal

import torch
from fl_labelskew_registry.contracts import Aggregated, LocalWork, Optimizer
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins.ops import keep_private
from fl_labelskew_plugins.optimizers.fedsam import FedSAM


class FedLESAM(Optimizer):
    """Local steps that are sharpness-aware along the last global change."""

    class Params(FedSAM.Params):
        lesam_form: Literal["paper", "code"] = Field(
            "paper", description="direction since the client last took part, or since the server's last round"
        )

    paper = (
        "Locally Estimated Global Perturbations are Better than Local Perturbations for Federated Sharpness-aware "
        "Minimization, ICML 2024, https://arxiv.org/abs/2405.18890"
    )

    @torch.no_grad()
    def before_round(self, work: LocalWork) -> None:
        """Move the weights by ``delta_k``, which is constant in a round."""
        client, rho, by_paper = work.client, self.params.sam_rho, self.params.lesam_form == "paper"
        known = client.state if by_paper else client.shared
        if not rho or not known:
            return
        uphill = {n: known[n].to(start) - start if by_paper else -known[n] for n, start in work.start.items()}
        norms = torch.stack(torch._foreach_norm(list(uphill.values())))
        norm = torch.linalg.vector_norm(norms) if by_paper else norms.sum()
        moved = {n: rho / (norm + 1e-12) * direction for n, direction in uphill.items()}
        client.scratch["moved"] = moved
        for name, delta in moved.items():
            work.parameters[name].add_(delta)

    @torch.no_grad()
    def correct(self, work: LocalWork) -> None:
        """Cancel the weight decay of ``delta_k``."""
        moved = work.client.scratch.get("moved")
        if moved and work.weight_decay:
            for name, gradient in work.gradients().items():
                gradient.sub_(work.weight_decay * moved[name])

    @torch.no_grad()
    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> dict[str, Tensor]:
        """Subtract ``delta_k``, from the network too: later stages of a method train it further."""
        client = work.client
        for name, delta in client.scratch.get("moved", {}).items():
            upload[name] = upload[name] - delta
            work.parameters[name].copy_(upload[name])
        if self.params.sam_rho and self.params.lesam_form == "paper":
            keep_private(client, "", work.start)
        return {}

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        if self.params.sam_rho and self.params.lesam_form == "code":
            round.shared.update({name: round.mean[name] - round.old[name] for name in round.parameters})
        return round.mean
