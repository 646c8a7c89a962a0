import dataclasses

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import RunError
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_checks import assert_finite
from method_totals import total_of
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedmr import FedMR, inter_class_loss, intra_class_loss


def naive_intra(z, y, scale, eps=1e-8):
    """Equation 3 class by class, with the (d, d) matrix written out; differentiable by autograd."""
    losses, used = [], 0
    d = z.shape[1]
    for c in sorted(set(y.tolist())):
        rows = z[y == c]
        n = len(rows)
        if n < 2:
            continue
        used += n
        zhat = (rows - rows.mean(0)) / (rows.var(0, unbiased=True) + eps).sqrt()
        matrix = zhat.T @ zhat
        if scale == "paper":
            losses.append((matrix / (n - 1)).square().sum())
        elif d > 1:
            losses.append(sum(matrix[i, j] ** 2 for i in range(d) for j in range(d) if i != j) / (d * (d - 1)))
    if not losses:
        return z.sum() * 0
    return sum(losses) / (len(losses) if scale == "paper" else used)


def naive_inter(z, y, g, known, negatives, *, observed=None):
    """Equation 4 pair by pair."""
    classes = len(g)
    if negatives == "all":
        allowed = range(classes)
    else:
        allowed = set(y.tolist()) if observed is None else [c for c in range(classes) if observed[c]]
    total, pairs = z.sum() * 0, 0
    for i in range(classes):
        rows = z[y == i]
        if len(rows) == 0 or not known[i]:
            continue
        for j in allowed:
            if j == i or not known[j]:
                continue
            pairs += 1
            total = total + sum(torch.relu((r - g[i]).norm() - (r - g[j]).norm()) for r in rows) / len(rows)
    return total / max(pairs, 1)


def same_value_and_gradient(ours, theirs, z, **tolerance):
    torch.testing.assert_close(ours, theirs, **tolerance)
    (a,), (b,) = torch.autograd.grad(ours, z), torch.autograd.grad(theirs, z)
    torch.testing.assert_close(a, b, **tolerance)


@settings(max_examples=60)
@given(
    rows=st.integers(0, 20),
    d=st.integers(1, 6),
    classes=st.integers(1, 5),
    scale=st.sampled_from(["code", "paper"]),
    known_classes=st.booleans(),
    size=st.sampled_from([1.0, 1e-4]),  # the variance of the second is as large as eps
    seed=st.integers(0, 10**6),
)
def test_intra_equals_loops(*, rows, d, classes, scale, known_classes, size, seed):
    torch.manual_seed(seed)
    z = (size * torch.randn(rows, d, dtype=torch.float64)).requires_grad_()
    y = torch.randint(0, classes, (rows,))
    ours = intra_class_loss(z, y, scale=scale, num_classes=classes if known_classes else None)
    same_value_and_gradient(ours, naive_intra(z, y, scale), z)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 12),
    d=st.integers(1, 6),
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6),
    negatives=st.sampled_from(["all", "observed"]),
    with_observed=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_inter_equals_loops(*, rows, d, flags, negatives, with_observed, seed):
    torch.manual_seed(seed)
    known, observed = (torch.tensor(column) for column in zip(*flags, strict=True))
    z = torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
    y, g = torch.randint(0, len(flags), (rows,)), torch.randn(len(flags), d, dtype=torch.float64)
    observed = observed if with_observed else None
    ours = inter_class_loss(z, y, g, known, negatives=negatives, observed=observed)
    same_value_and_gradient(ours, naive_inter(z, y, g, known, negatives, observed=observed), z)


def test_intra_hand_numbers():
    # two samples: zhat is +-1/sqrt(2) in both dimensions, so the matrix is all ones
    z = torch.tensor([[0.0, 5.0], [1.0, 9.0], [7.0, 7.0]])
    y = torch.tensor([4, 4, 1])  # the third is the only sample of its class
    assert intra_class_loss(z, y).item() == pytest.approx(0.5)  # mean off-diagonal 1, over 2 samples used
    assert intra_class_loss(z, y, scale="paper").item() == pytest.approx(4)  # 2 x 2 ones, one class
    # uncorrelated dimensions
    z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert intra_class_loss(z, torch.zeros(4, dtype=torch.long)).item() == pytest.approx(0, abs=1e-6)
    assert intra_class_loss(z, torch.zeros(4, dtype=torch.long), scale="paper").item() == pytest.approx(2)


def test_inter_hand_numbers():
    g = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])
    z = torch.tensor([[3.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    y, known = torch.tensor([0, 0, 1]), torch.tensor([True, True, True])
    # class 0 against 1: (3 - 1) / 2; against 2: 0; class 1 against 0 and 2: 0; four pairs
    assert inter_class_loss(z, y, g, known).item() == pytest.approx(1 / 4)
    # against observed classes: the pairs (0, 1) and (1, 0)
    assert inter_class_loss(z, y, g, known, negatives="observed").item() == pytest.approx(1 / 2)
    # unknown class 1: only class 0 against 2
    assert inter_class_loss(z, y, g, torch.tensor([True, False, True])).item() == 0


@pytest.mark.parametrize("scale", ["code", "paper"])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_constant_dimensions(scale, offset):
    z = torch.randn(6, 4)
    z[:, 1] = offset
    z[:, 2] = offset + 1e-4 * torch.randn(6)  # a variance as small as eps
    z = z.double().requires_grad_()
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    same_value_and_gradient(intra_class_loss(z, y, scale=scale), naive_intra(z, y, scale), z)
    single = z.detach().float().requires_grad_()
    intra_class_loss(single, y, scale=scale).backward()
    (expected,) = torch.autograd.grad(naive_intra(z, y, scale), z)
    torch.testing.assert_close(single.grad.double(), expected, rtol=0.02, atol=1e-3)


def test_inter_at_a_prototype():
    g = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    z = g.clone().requires_grad_()  # the first lies on the other class's prototype
    inter_class_loss(z, torch.tensor([1, 1]), g, torch.ones(2, dtype=torch.bool)).backward()
    assert z.grad.isfinite().all()
    assert z.grad.tolist() == [[-0.5, 0.0], [0.0, 0.0]]


def test_unknown_prototypes_are_never_read():
    z, y = torch.randn(4, 2, requires_grad=True), torch.tensor([0, 1, 2, 2])
    known = torch.tensor([True, True, False])
    g = torch.randn(3, 2)
    g[2] = torch.nan
    assert_finite(inter_class_loss(z, y, g, known), z)
    assert not z.grad[2:].any()


def test_losses_without_a_gradient():
    z, y = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    assert not intra_class_loss(z, y).requires_grad
    assert not inter_class_loss(z, y, torch.randn(2, 2), torch.ones(2, dtype=torch.bool)).requires_grad


class TestMethod:
    def shared(self):
        return {"prototypes": torch.randn(5, 3), "known": torch.tensor([True, True, True, True, False])}

    @pytest.mark.parametrize("scale", ["code", "paper"])
    @pytest.mark.parametrize("negatives", ["all", "observed"])
    @pytest.mark.parametrize("eps", [1e-8, 0.5])
    def test_terms(self, world, scale, negatives, eps):
        method = FedMR(FedMR.Params(mu1=0.5, mu2=0.25, scale=scale, eps=eps, negatives=negatives))
        shared, batch = self.shared(), world.batch([0, 1, 3, 4])  # classes 0 and 1 of the client's 0, 1, 2
        terms = method.loss(batch, world.client(shared=shared))
        assert list(terms) == ["cross_entropy", "intra", "inter"]
        torch.testing.assert_close(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
        torch.testing.assert_close(terms["intra"], 0.5 * naive_intra(batch.features, batch.labels, scale, eps))
        inter = naive_inter(batch.features, batch.labels, *shared.values(), negatives, observed=world.counts > 0)
        torch.testing.assert_close(terms["inter"], 0.25 * inter)
        sum(terms.values()).backward()

    def test_lite(self, world):
        shared, batch = self.shared(), world.batch()
        whole = FedMR().loss(batch, world.client(shared=shared))["inter"]
        assert "inter" not in FedMR(FedMR.Params(lite=0)).loss(batch, world.client(shared=shared))
        for many in (16, 50):  # as many samples as the batch has, or more
            lite = FedMR(FedMR.Params(lite=many)).loss(batch, world.client(shared=shared))["inter"]
            assert torch.equal(lite, whole)
        method, view = FedMR(FedMR.Params(lite=4)), world.client(shared=shared)
        picked = torch.randperm(16, generator=torch.Generator().manual_seed(1))[:4]
        expected = naive_inter(batch.features[picked], batch.labels[picked], *shared.values(), "all")
        first, second = (method.loss(batch, view)["inter"] for _ in range(2))
        torch.testing.assert_close(first, 1e-4 * expected)
        assert not torch.equal(first, second)
        torch.manual_seed(99)  # the global generator plays no part
        assert torch.equal(method.loss(batch, world.client(shared=shared))["inter"], first)

    def test_prototypes_after_training(self, world):
        contribution = FedMR().contribute(world.client())
        h, y = world.client().features()
        assert torch.equal(contribution["counts"], world.counts)
        announced = FedMR().contribution_shapes(world.federation)
        assert {name: tuple(tensor.shape) for name, tensor in contribution.items()} == announced
        for c in range(3):
            torch.testing.assert_close(contribution["sums"][c], h[y == c].sum(0))

    def test_running_prototypes_equal_the_pass_if_the_model_stands_still(self, world):
        world.net.eval()
        method, view = FedMR(FedMR.Params(prototypes="running")), world.client()
        method.before_round(view)
        for last in (False, True):  # only the last epoch counts
            for part in torch.randperm(40).split(16):
                method.loss(world.batch(part, last_epoch=last), view)
        running, after = method.contribute(view), FedMR().contribute(world.client())
        assert torch.equal(running["counts"], after["counts"])
        torch.testing.assert_close(running["sums"], after["sums"])
        assert not running["sums"].requires_grad

    def test_without_features_there_is_a_clear_error(self, world):
        with pytest.raises(RuntimeError, match=r"`client.features`"):
            FedMR().contribute(world.client(features=None))

    def test_a_round_without_uploads_keeps_the_prototypes(self):
        shared = self.shared()
        assert FedMR().combine(total_of({}), shared) is shared
        assert FedMR().combine(total_of(), {}) == {}

    def test_sums_that_overflow_end_the_round_in_one_line(self):
        huge = {"sums": torch.full((2, 3), 3e38), "counts": torch.ones(2, dtype=torch.int64)}
        line = message(lambda: total_of(huge, huge, round=4), kind=RunError)
        assert line.startswith("round 5: the sum of sums over 2 clients is not finite, training diverged")

    @pytest.mark.parametrize(("fraction", "number"), [(0.0, 0), (0.25, 3), (1.0, 10)])
    def test_a_fixed_fraction_of_clients_submits(self, world, federation, fraction, number):
        method = FedMR(FedMR.Params(share_prototypes=fraction))
        rounds = [{k for k in range(10) if method.contribute(world.client(id=k, round=r))} for r in range(3)]
        assert len(rounds[0]) == number
        assert rounds[0] == rounds[1] == rounds[2]
        if 0 < number < 10:
            runs = [dataclasses.replace(federation, seed=seed) for seed in range(8)]
            sets = [{k for k in range(10) if method.shares(world.client(id=k, federation=run))} for run in runs]
            assert any(clients != sets[0] for clients in sets)

    def test_clients_that_keep_their_prototypes_or_train_on_nothing_send_none(self, world):
        method, view = FedMR(FedMR.Params(prototypes="running")), world.client()
        method.before_round(view)
        assert method.contribute(view) == {}
        method = FedMR(FedMR.Params(share_prototypes=0.0, prototypes="running"))
        view = world.client()
        method.before_round(view)
        method.loss(world.batch(last_epoch=True), view)
        assert view.scratch == {}
        assert method.contribute(view) == {}

    @pytest.mark.parametrize(
        ("method", "unused", "used"),
        [
            ("fedproc", {"schedule": "constant", "mu": 0.0}, {"mu": 1e-30}),
            ("fedmr", {"prototypes": "running", "mu2": 0.0}, {"mu2": 1e-30}),
            ("fedmr", {"lite": 0}, {"mu2": 1e-30, "lite": "null"}),
        ],
    )
    def test_prototypes_that_nobody_uses_are_not_sent_and_nothing_else_changes(self, digits, method, unused, used):
        silent, sends = digits(method, **unused), digits(method, **unused | used)
        for clients in ([0, 1], [1, 2]):
            assert all(result.contributions == {} for result in silent.play(clients).values())
            assert all(result.contributions for result in sends.play(clients).values())
        assert silent.method.contribution_shapes(silent.made.federation) == {}
        assert silent.server.shared == {}
        assert all(torch.equal(v, sends.server.weights[k]) for k, v in silent.server.weights.items())
