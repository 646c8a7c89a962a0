import pytest
import torch
from fl_labelskew_registry import HOOKS, Batch, ClientView, Method, Total
from fl_labelskew_registry.testing import FEDERATION
from pydantic import BaseModel

from fl_labelskew_plugins.optimizers.fedprox import FedProx
from fl_labelskew_plugins.optimizers.scaffold import SCAFFOLD


class Plain(Method):
    class Params(BaseModel):
        factor: float = 2.0


def test_params_default_to_the_plugins_model():
    assert Plain().params.factor == 2.0
    assert Plain(Plain.Params(factor=3.0)).params.factor == 3.0


def test_the_base_method_is_fedavg():
    method = Plain()
    client = ClientView(1, 0, torch.tensor([2, 0, 3]), {}, {}, torch.Generator(), 1, FEDERATION)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 2, 0])
    batch = Batch(inputs=torch.zeros(4, 1), features=torch.zeros(4, 5), logits=logits, labels=labels)
    terms = method.loss(batch, client)
    assert list(terms) == ["cross_entropy"]
    by_hand = torch.stack([row.logsumexp(0) - row[label] for row, label in zip(logits, labels, strict=True)]).mean()
    torch.testing.assert_close(terms["cross_entropy"], by_hand)
    assert [(stage.name, stage.epochs, stage.upload) for stage in method.stages(5)] == [("train", 5, True)]
    update = {"weight": torch.ones(2)}
    assert method.protect(update, client) is update
    assert method.combine(Total({}, 0), {"kept": logits})["kept"] is logits
    assert (method.opening(client), method.open(Total({}, 0)), method.contribute(client)) == ({}, {}, {})
    assert (method.opening_shapes(client.federation), method.contribution_shapes(client.federation)) == ({}, {})
    assert (method.runtimes, method.silo_choices) == (("sp", "MPI", "GRPC"), ())
    assert method.before_round(client) is None
    assert method.after_round(client) is None
    assert method.personalised({}) is None
    assert not method.personalises()
    assert (method.deviations(), method.warnings(client.federation), method.report(client.federation)) == ([], [], {})


def test_overridden_hooks_of_a_plugin():
    class Sends(Plain):
        def contribute(self, client):
            return {}

    class Inherits(Sends):
        def personalised(self, state):
            return dict(state)

    assert not Plain().uses(*HOOKS[Method])
    assert Sends().uses("contribute")
    assert not Sends().uses("opening", "stages")
    assert Inherits().uses("opening", "contribute")  # any of them
    assert Inherits().personalises()
    assert Plain().logits_only()
    assert not Sends().logits_only()
    assert SCAFFOLD().uses("step")
    assert not FedProx().uses("step", "finish")
    with pytest.raises(AttributeError):
        Plain().uses("openings")
