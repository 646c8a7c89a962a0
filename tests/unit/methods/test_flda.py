import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import softmax
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.methods.flda import FLDA, mixed


def naive(general, private, score, mixture):
    rows = []
    for g, p, s in zip(general.tolist(), private.tolist(), score.tolist(), strict=True):
        a = 1 / (1 + math.exp(-s))
        if mixture == "probabilities":
            rows.append([math.log(a * x + (1 - a) * y) for x, y in zip(softmax(g), softmax(p), strict=True)])
        else:
            rows.append([a * x + (1 - a) * y for x, y in zip(g, p, strict=True)])
    return torch.tensor(rows, dtype=torch.float64)


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["logits", "probabilities"]))
def test_mixture_equals_loops(rows, classes, mixture):
    general, private = 3 * torch.randn(2, rows, classes, dtype=torch.float64)
    score = torch.randn(rows, dtype=torch.float64)
    torch.testing.assert_close(mixed(general, private, score, mixture=mixture), naive(general, private, score, mixture))
    one = mixed(general, private, score[0], mixture=mixture)  # a share for all
    torch.testing.assert_close(one, naive(general, private, score[:1].expand(rows), mixture))


@pytest.mark.parametrize("mixture", ["logits", "probabilities"])
def test_hand_numbers_and_a_closed_gate(mixture):
    g, p = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    assert mixed(g, p, torch.tensor([1e4]), mixture=mixture).softmax(1).tolist() == [pytest.approx([0.75, 0.25])]
    assert mixed(g, p, torch.tensor([-1e4]), mixture=mixture).softmax(1).tolist() == [pytest.approx([0.5, 0.5])]
    third = math.log(1 / 2)  # a = 1/3: 1/3 of 3/4 and 2/3 of 1/2, or a third of the logits
    first = 1 / 4 + 1 / 3 if mixture == "probabilities" else 3 ** (1 / 3) / (1 + 3 ** (1 / 3))
    half = mixed(g, p, torch.tensor([third]), mixture=mixture).softmax(1)
    assert half[0, 0].item() == pytest.approx(first, rel=1e-6)


def begun(method, world, **changes):
    view = world.client(**changes)
    method.before_round(view)
    return view


class TestFLDA:
    @pytest.mark.parametrize("mixture", ["logits", "probabilities"])
    def test_it_may_begin_as_the_general_model(self, world, mixture):
        """Two equal models mix to one of them for any gate, so the gate has no gradient."""
        method = FLDA(FLDA.Params(mixture=mixture, private_start="general"))
        view, batch = begun(method, world), world.batch()
        loss = method.loss(batch, view)["cross_entropy"]
        torch.testing.assert_close(loss, cross_entropy(batch.logits, batch.labels))
        loss.backward()
        private = method.private_parameters(view)
        assert len(private) == len(list(world.net.parameters())) + 1
        assert all(p.grad is not None for p in private)
        torch.testing.assert_close(private[0].grad, next(world.net.parameters()).grad)
        assert private[-1].tolist() == [0.0] * 4  # d features and a bias: a gate of one half
        assert not private[-1].grad.any()

    @pytest.mark.parametrize("mixture", ["logits", "probabilities"])
    def test_it_begins_as_another_random_network_and_the_gate_learns_at_once(self, world, mixture):
        method = FLDA(FLDA.Params(mixture=mixture))
        view, batch = begun(method, world), world.batch()
        begins = view.scratch["flda.private"].state_dict()
        assert all(torch.equal(begins[name], tensor) for name, tensor in view.fresh().items())
        method.loss(batch, view)["cross_entropy"].backward()
        assert all(p.grad.any() for p in (method.private_parameters(view)[0], method.private_parameters(view)[-1]))

    @pytest.mark.parametrize("share", [None, 0.25])
    def test_loss_gate_and_state(self, world, share):
        method = FLDA(FLDA.Params(general_share=share))
        state = world.moved("private.")
        if share is None:
            state["gate"] = torch.tensor([1.0, -2.0, 0.5, 0.1])
        kept = {k: v.clone() for k, v in state.items()}
        view, batch = begun(method, world, state=state), world.batch()
        expert = view.frozen({k.removeprefix("private."): v for k, v in state.items() if k != "gate"}).train()
        score = torch.full((16,), math.log(1 / 3))
        if share is None:
            score = batch.features @ torch.tensor([1.0, -2.0, 0.5]) + 0.1
        expected = cross_entropy(naive(batch.logits, expert(batch.inputs), score, "logits").float(), batch.labels)
        loss = method.loss(batch, view)["cross_entropy"]
        torch.testing.assert_close(loss, expected)
        parameters = method.private_parameters(view)
        assert len(parameters) == len(list(expert.parameters())) + (share is None)
        loss.backward()
        torch.optim.SGD(parameters, lr=0.1).step()
        method.after_round(view)
        assert view.state.keys() == kept.keys()
        changed = {k for k in kept if not torch.equal(view.state[k], kept[k])}
        assert changed >= {"private.classifier.weight", "private.body.0.weight", *(["gate"] if share is None else [])}
        assert not any(v.requires_grad for v in view.state.values())

    def test_its_own_measure_is_the_mixture_s(self, world):
        method = FLDA()
        state = world.moved("private.")
        view = begun(method, world, state=state | {"gate": torch.tensor([1.0, -2.0, 0.5, 0.1])})
        world.net.eval()
        with torch.inference_mode():
            ours, features = method.private_logits(world.x, view), world.net.features(world.x)
            private = view.frozen({k.removeprefix("private."): v for k, v in state.items()})(world.x)
            score = features @ torch.tensor([1.0, -2.0, 0.5]) + 0.1
        torch.testing.assert_close(ours, naive(world.net(world.x), private, score, "logits").float())

    def test_batch_of_one(self, world):
        method, view = FLDA(), begun(FLDA(), world)
        batch = world.batch()
        single = type(batch)(batch.inputs[:1], batch.features[:1], batch.logits[:1], batch.labels[:1])
        assert method.loss(single, view)["cross_entropy"].isfinite()
        assert not view.scratch["flda.private"].training
        method.loss(batch, view)
        assert view.scratch["flda.private"].training

    def test_frozen_layers_stay_frozen(self, world):
        world.net.body[0].requires_grad_(False)
        view = begun(FLDA(), world)
        assert len(FLDA().private_parameters(view)) == 4 + 1

    def test_all_clients_begin_with_the_same_other_network(self, digits):
        method, again = digits("flda"), digits("flda")
        torch.rand(1)
        views = [Turn(run.trainer, client).view for run, client in ((method, 0), (method, 2), (again, 0))]
        for view in views:
            method.method.before_round(view)
        first, *others = ([p.detach() for p in method.method.private_parameters(view)] for view in views)
        assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
        start = [tensor for name, tensor in method.server.weights.items() if name.endswith("weight")]
        assert all(not torch.equal(a, b) for a, b in zip(first[::2], start, strict=False))

    def test_an_optimiser_gets_the_mixture_s_gradient(self, digits):
        """Mime asks for it before the first step; with equal models and half a gate, it is half."""
        from fl_labelskew_plugins.optimizers.mime import Mime

        sent = {}
        for name in ("fedavg", "flda"):
            run = digits(name, **({"private_start": "general"} if name == "flda" else {}))
            run.server.optimizer = Mime()
            run.trainer = replace(run.trainer, optimizer=run.server.optimizer)
            sent[name] = run.fit(0).contributions["optimizer/classifier.weight"]
        torch.testing.assert_close(sent["flda"], sent["fedavg"] / 2)
