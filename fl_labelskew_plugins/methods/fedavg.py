"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data."""

from fl_labelskew_registry.contracts import Method

from fl_labelskew_plugins import params


class FedAvg(Method):
    r"""Plain federated averaging.

    Algorithm 1: clients minimise plain cross-entropy. The new model is the sample-weighted mean of theirs.

    .. math:: w^{t+1} = \sum_k \frac{N_k}{\sum_j N_j} \, w_k^{t+1}
    """

    Params = params.Params
    paper = (
        "Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "https://arxiv.org/abs/1602.05629"
    )
