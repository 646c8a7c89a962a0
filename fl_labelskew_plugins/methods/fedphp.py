"""FedPHP: Federated Personalization with Inherited Private Models.

MAP's inherited private model without the restricted softmax: one stage; its result is both the upload and the
personalised model.
"""

from fl_labelskew_registry.contracts import Stage

from fl_labelskew_plugins.methods.map import InheritedPrivateModel, TransferParams


class FedPHP(InheritedPrivateModel):
    r"""Personalisation with an inherited private model.

    The equation numbers are MAP's. To cross-entropy, FedPHP adds a transfer from the private model ``p`` (equation 13):
    distillation (equation 11), or the maximum mean discrepancy of features (equation 12):

    .. math::
        \mathcal{L}_{kd} =
        \frac{1}{B} \sum_{i=1}^{B} D_{KL}\bigl(\sigma(z_{p,i} / \tau) \,\Vert\, \sigma(z_i / \tau)\bigr), \quad
        \mathcal{L} = (1 - \lambda) \, \mathcal{L}_{ce} + \lambda \, \mathcal{L}_{kd}

    After the round the private model is mixed with the personalised one (equation 10), with a growing momentum:

    .. math::
        \theta_p \leftarrow (1 - \mu_k) \, \theta + \mu_k \, \theta_p, \quad
        \mu_k = \min\bigl(\mu_0 \, z_k / (Q T), 1\bigr)

    With ``lam: 0``, the loss is bit-identical to plain cross-entropy.
    """

    Params = TransferParams
    paper = (
        "FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021, "
        "https://doi.org/10.1007/978-3-030-86486-6_36"
    )

    def stages(self, epochs: int) -> list[Stage]:
        return [Stage("personalise", epochs)]
