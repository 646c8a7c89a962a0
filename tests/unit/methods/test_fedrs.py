import dataclasses
import math

import numpy as np
import pytest
import torch

from fl_labelskew_plugins.methods.fedrs import FedRS, privacy_epsilon, private_update, restricted_logits


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("params", [{}, {"alpha": 0.0}, {"scaling": "proportional"}, {"min_count": 14}])
def test_loss_is_cross_entropy_of_the_restricted_logits(world, params):
    method = FedRS(FedRS.Params(**params))
    batch = world.batch()
    options = {"alpha": 0.5} | params
    expected = torch.nn.functional.cross_entropy(restricted_logits(batch.logits, world.counts, **options), batch.labels)
    assert torch.equal(method.loss(batch, world.client())["cross_entropy"], expected)


@pytest.mark.parametrize(("data", "min_count"), [("FEMNIST", 2), ("Shakespeare", 20)])
def test_a_class_with_too_few_samples_is_missing(world, data, min_count):
    """FedRS, section 5.3: classes with fewer than 2 (FEMNIST) or 20 (Shakespeare) samples count as missing."""
    client = world.client(counts=torch.tensor([0, min_count - 1, min_count, min_count + 1, 500]))
    logits = FedRS(FedRS.Params(min_count=min_count)).calibrate(torch.ones(1, 5), client)
    assert logits.tolist() == [[0.5, 0.5, 1, 1, 1]]


class TestPrivateUpload:
    def test_clip_limits_the_norm_of_all_tensors_together(self):
        def clipped(clip, **update):
            return private_update(update, clip=clip, sigma=0.0, generator=generator())

        a, n = torch.tensor([3.0, 0.0]), torch.tensor(7)
        together = clipped(2.5, a=a, b=torch.tensor([[4.0]], dtype=torch.float64), n=n)
        assert together["a"].tolist() == [1.5, 0.0]
        assert together["b"].tolist() == [[2.0]]
        assert together["b"].dtype == torch.float64
        assert together["n"] is n
        for small in (torch.tensor([3.0, -4.0]), torch.zeros(3)):
            assert torch.equal(clipped(5.0, a=small)["a"], small)
        torch.testing.assert_close(clipped(2.0, a=torch.full((4,), 1e30))["a"], torch.ones(4))
        assert private_update({"n": n}, clip=1.0, sigma=1.0, generator=generator())["n"] is n

    def test_noise_has_the_right_size_and_comes_from_the_generator(self):
        update = {"a": torch.zeros(20000), "b": torch.zeros(20000)}
        torch.manual_seed(3)
        one = private_update(update, clip=1.0, sigma=0.1, generator=generator(5))
        torch.manual_seed(4)
        two = private_update(update, clip=1.0, sigma=0.1, generator=generator(5))
        assert torch.equal(one["a"], two["a"])
        assert not torch.equal(one["a"], one["b"])
        assert one["a"].std().item() == pytest.approx(0.1, rel=0.03)
        assert abs(one["a"].mean().item()) < 0.005

    @pytest.mark.parametrize(("sigma", "grid"), [(5.0, 2.0**-8), (0.1, 2.0**-14), (4.0, 2.0**-8)])
    def test_low_bits_do_not_show_whether_there_was_an_update(self, sigma, grid):
        """The noise of float32 has values that it never takes with an update, however small the update is."""
        updates = [torch.zeros(5000), torch.full((5000,), 1e-7), torch.linspace(-0.01, 0.01, 5000)]
        values = [private_update({"a": a}, clip=1.0, sigma=sigma, generator=generator())["a"].double() for a in updates]
        for noisy in values:
            assert torch.equal(noisy, (noisy / grid).round() * grid)
        assert (values[0] != values[1]).double().mean() < 0.01

    def test_epsilon_of_the_paper(self):
        epsilon = privacy_epsilon(clip=20, sigma=0.1, delta=0.01, min_samples=400)
        assert epsilon == pytest.approx(math.sqrt(2 * math.log(125)))  # 2L/m equals sigma
        assert round(epsilon) == 3
        assert privacy_epsilon(clip=20, sigma=0.2, delta=0.01, min_samples=400) == pytest.approx(epsilon / 2)

    def test_clip_alone_adds_no_noise_and_claims_nothing(self, world, federation):
        method = FedRS(FedRS.Params(upload_clip=1))
        assert method.protects()
        assert not method.logits_only()
        clipped = method.protect({"a": torch.tensor([3.0, 4.0])}, world.client())["a"]
        assert clipped.tolist() == pytest.approx([0.6, 0.8])
        assert method.report(federation) == {}

    def test_noise_is_drawn_from_the_generator_for_noise_alone(self, world):
        method, view = FedRS(FedRS.Params(upload_clip=1.0, upload_sigma=0.1)), world.client()
        before = view.generator.get_state()
        noisy = method.protect({"a": torch.zeros(5)}, view)["a"]
        assert torch.equal(view.generator.get_state(), before)
        assert torch.equal(noisy, method.protect({"a": torch.zeros(5)}, world.client())["a"])
        with pytest.raises(RuntimeError, match=r"client.noise"):
            method.protect({"a": torch.zeros(5)}, world.client(noise=None))

    def test_method_reports_epsilon(self, federation):
        method = FedRS(FedRS.Params(upload_clip=20.0, upload_sigma=0.1))
        run = dataclasses.replace(federation, min_samples=400)
        privacy = method.report(run)["privacy"]
        assert privacy["epsilon"] == pytest.approx(3.1075, abs=1e-3)
        assert privacy["delta"] == 0.01
        assert "one round" in privacy["holds_for"]
        tighter = FedRS(FedRS.Params(upload_clip=20.0, upload_sigma=0.1, upload_delta=0.001)).report(run)["privacy"]
        assert tighter["delta"] == 0.001
        assert tighter["epsilon"] > privacy["epsilon"]
