"""FedMMD: Two-Stream Federated Learning: Reduce the Communication Costs.

Bandwidths are relative to the mean distance of features, as in deep adaptation networks, so the gradient does not
vanish when both models are close and large weights overshoot.
"""

from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import from_teacher, frozen_model, mmd


class FedMMD(Method):
    r"""Maximum mean discrepancy to the server's model in local training.

    Cross-entropy plus the maximum mean discrepancy, with Gaussian kernels, between the features of the server's frozen
    model (``s``) and of the trained model (``t``). A bar is the mean over all pairs in a batch:

    .. math::
        \mathcal{L} = \mathcal{L}_{ce} + \lambda \bigl(\bar K_{ss} + \bar K_{tt} - 2 \bar K_{st}\bigr), \quad
        K(x, y) = \sum_i \exp\bigl(-\lVert x - y \rVert^2 / b_i\bigr)

    With ``lam: 0``, the loss is bit-identical to plain cross-entropy.
    """

    class Params(params.Params):
        lam: float = Field(0.1, ge=0, description="weight of the discrepancy (FedRS, tables 1 and 5: 1e-4, 1e-3)")

    paper = (
        "Two-Stream Federated Learning: Reduce the Communication Costs, VCIP 2018, "
        "https://doi.org/10.1109/VCIP.2018.8698609"
    )

    def before_round(self, client: ClientView) -> None:
        if self.params.lam > 0:
            client.scratch["teacher"] = frozen_model(client)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        if (target := from_teacher(batch, client, features=True)) is None:
            return {}
        return {"mmd": self.params.lam * mmd(batch.features, target)}

    def deviations(self) -> list[str]:
        line = "compares features, bandwidths around their mean distance; the authors' code: logits, fixed bandwidths"
        return [line] if self.params.lam > 0 else []
