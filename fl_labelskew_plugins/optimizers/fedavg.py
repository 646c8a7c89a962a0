"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data."""

from fl_labelskew_registry.contracts import Optimizer

from fl_labelskew_plugins import params


class FedAvgOptimizer(Optimizer):
    """Local SGD and the mean of the uploads."""

    Params = params.Params
    paper = (
        "Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "https://arxiv.org/abs/1602.05629"
    )
