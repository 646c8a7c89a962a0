import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import softmax
from method_totals import total_of
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fd import FD, distillation, without_own


def naive(logits, labels, teacher, known):
    total = 0.0
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        if known[y]:
            total -= sum(a * math.log(b) for a, b in zip(softmax(teacher[y].tolist()), softmax(z), strict=True))
    return total / len(labels)


@given(st.integers(1, 6), st.integers(1, 5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_distillation_equals_loops(rows, classes, flags):
    logits, teacher = 3 * torch.randn(rows, classes).double(), 3 * torch.randn(classes, classes).double()
    labels, known = torch.randint(classes, (rows,)), torch.tensor(flags[:classes])
    ours = distillation(logits, labels, teacher, known)
    assert ours.item() == pytest.approx(naive(logits, labels, teacher, known), abs=1e-12)


def test_hand_numbers():
    z, y, known = torch.tensor([[math.log(3), 0.0]]), torch.tensor([1]), torch.tensor([False, True])
    teacher = torch.tensor([[math.nan, math.nan], [0.0, 0.0]])  # unknown outputs are never read
    expected = -0.5 * math.log(0.75) - 0.5 * math.log(0.25)
    assert distillation(z, y, teacher, known).item() == pytest.approx(expected, rel=1e-6)
    assert distillation(z, torch.tensor([0]), teacher, known).item() == 0


def test_without_own_equals_a_loop():
    sent = torch.randn(4, 3, 3)
    held = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 0, 0]])
    total, senders = (sent * held[:, :, None]).sum(0), held.sum(0)
    for k in range(4):
        teacher, known = without_own(total, senders, sent[k], held[k] > 0)
        for c in range(3):
            others = [sent[j, c] for j in range(4) if j != k and held[j, c]]
            assert known[c] == bool(others)
            if others:
                torch.testing.assert_close(teacher[c], torch.stack(others).mean(0))


def played(method, world, *, indices=(slice(0, 16), slice(16, 40)), **changes):
    view = world.client(**changes)
    method.before_round(view)
    terms = [method.loss(world.batch(index), view) for index in indices]
    sent = method.contribute(view)
    method.after_round(view)
    return view, terms, sent


class TestFD:
    def test_what_is_sent_is_the_mean_over_the_round_s_batches(self, world, federation):
        method = FD()
        view, terms, sent = played(method, world)
        assert [list(names) for names in terms] == [["cross_entropy"]] * 2  # nobody has taught yet
        logits = torch.cat([world.batch(slice(0, 16)).logits, world.batch(slice(16, 40)).logits]).detach()
        for c in range(3):
            torch.testing.assert_close(sent["outputs"][c], logits[world.y == c].mean(0))
        assert (sent["outputs"][3:] == 0).all()
        assert sent["held"].tolist() == [1, 1, 1, 0, 0]
        assert {k: tuple(v.shape) for k, v in sent.items()} == method.contribution_shapes(federation)
        assert all(torch.equal(view.state[k], v) for k, v in sent.items())
        assert view.state["round"] == 0
        assert not sent["outputs"].requires_grad

    def test_others_teach(self, world):
        method = FD(FD.Params(gamma=0.5))
        view, _, sent = played(method, world)
        other = {"outputs": torch.randn(5, 5), "held": torch.tensor([1, 0, 0, 1, 0])}
        other["outputs"][other["held"] == 0] = 0
        shared = method.combine(total_of(sent, other), {})
        assert shared["senders"].tolist() == [2, 1, 1, 1, 0]
        next_round = world.client(round=1, shared=shared, state=view.state)
        method.before_round(next_round)
        batch = world.batch()
        terms = method.loss(batch, next_round)
        expected = naive(batch.logits, batch.labels, other["outputs"], other["held"] > 0)
        assert terms["distillation"].item() == pytest.approx(0.5 * expected, rel=1e-4)
        assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))

    def test_what_was_not_in_the_sum_is_not_taken_out(self, world):
        """A client without outputs in the last round learns from all clients that sent some."""
        method = FD()
        before, kept = played(method, world)[0], played(method, world, round=1, sends=False)[0]
        assert kept.state == {}
        other = {"outputs": torch.randn(5, 5), "held": torch.ones(5).long()}
        shared = method.combine(total_of(other, round=1), {})
        for state in (before.state, kept.state):
            next_round = world.client(round=2, shared=shared, state=state)
            method.before_round(next_round)
            teacher, known = next_round.scratch["fd.teacher"]
            torch.testing.assert_close(teacher, other["outputs"])
            assert known.all()

    def test_a_round_without_outputs_leaves_no_teacher(self, world):
        method = FD()
        assert played(method, world, indices=())[2] == {}
        sent = played(method, world)[2]
        shared = method.combine(total_of(sent), {"prior": torch.ones(5)})
        assert set(shared) == {"prior", "total", "senders", "round"}
        assert set(method.combine(total_of({}), shared)) == {"prior"}
