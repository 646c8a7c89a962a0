"""FedPHP: Federated Personalization with Inherited Private Models.

X.-C. Li, D.-C. Zhan, Y. Shao, B. Li, S. Song. ECML PKDD 2021. https://doi.org/10.1007/978-3-030-86486-6_36

The inherited private model of MAP without its restricted softmax: one stage of all local epochs, supervised by the
private model, whose end is both the upload and the personalised model. Formulas and equation numbers are MAP's
(``methods/map.py``). Neutral setting: ``lam = 0`` is plain cross-entropy, bit for bit.
"""

from __future__ import annotations

from fl_labelskew_registry.contracts import Stage

from fl_labelskew_plugins.methods.map import InheritedPrivateModel, TransferParams


class FedPHP(InheritedPrivateModel):
    """Personalisation with an inherited private model."""

    class Params(TransferParams):
        """Options of FedPHP; ``lam: 0`` is plain cross-entropy."""

    paper = (
        "FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021, "
        "https://doi.org/10.1007/978-3-030-86486-6_36"
    )

    def stages(self, epochs: int) -> list[Stage]:
        """All epochs in one stage, whose end is uploaded."""
        return [Stage("personalise", epochs)]
