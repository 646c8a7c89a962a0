from collections import UserList

import pytest
from fl_labelskew_registry import RunError, Stage

from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.optimizers.feddc import FedDC
from fl_labelskew_plugins.optimizers.mime import Mime
from fl_labelskew_plugins.optimizers.scaffold import SCAFFOLD


class Adds(FedAvgOptimizer):
    def __init__(self):
        super().__init__()
        self.steps = UserList()  # which a run does not look into

    def correct(self, work):
        for gradient in work.gradients().values():
            gradient.add_(1)

    def finish(self, work, upload):
        self.steps.append(work.steps)
        return {}


@pytest.mark.parametrize(
    ("stages", "upload", "last", "steps"),
    [
        ([Stage("shared", 0.5), Stage("own", 0.5, upload=False)], 1 - 0.1 * (1 + 1), 0.8 - 0.1 * 0.8, 1),
        ([Stage("first", 0.5, upload=False), Stage("double", 0.5)], *[0.8 - 0.1 * (2 * 0.8 + 1)] * 2, 2),
    ],
)
def test_only_training_before_the_upload_is_corrected(world, stages, upload, last, steps):
    two = world(Adds(), steps=(2, 2), stages=stages)
    result = fit(two.trainer, 0, 0, two.server.weights, times_selected=1)
    assert float(result.upload["w"]) == pytest.approx(upload)
    assert two.trainer.model.w.item() == pytest.approx(last)
    assert two.trainer.optimizer.steps == [steps]


def test_gradients_are_clipped_once_they_are_corrected(world):
    two = world(Adds(), steps=(1, 1), gradient_clip_norm=0.5)
    assert two.play() == pytest.approx(1 - 0.1 * 0.5)  # both go by 0.5: 1 + 1 and 0 + 1, clipped


def test_the_gradient_before_training_is_that_of_the_first_stage(world):
    """The loss depends on the stage, as in FedPHP."""
    two = world(Mime(), stages=[Stage("double", 1)])
    result = fit(two.trainer, 0, 0, two.server.weights, times_selected=1)
    assert float(result.contributions["optimizer/w"]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("optimizer", "name"), [(SCAFFOLD(), "optimizer/w"), (FedDC(FedDC.Params(feddc_alpha=0.0)), "optimizer/mean/w")]
)
def test_momentum_enters_the_mean_step(world, optimizer, name):
    """With minima far away, gradients are constant, and the control variate or mean step equals the gradient."""
    two = world(optimizer, a=(1e-6, 1e-6), b=(-1e6, 1e6), steps=(5, 3), momentum=0.9)
    two.play()
    assert [two.kept(client, name) for client in (0, 1)] == pytest.approx([1, -1], rel=1e-4)
    assert [*two.states[0]] == [name]  # FedDC without alpha keeps no drift


def test_additional_tensors_have_the_dtype_of_the_parameters(world):
    """Float64 from one client would make the shared control variate float64."""
    two = world(SCAFFOLD())
    result = fit(two.trainer, 0, 0, two.server.weights, times_selected=1)
    two.server.check(0, 0, result)
    result.contributions = {name: value.double() for name, value in result.contributions.items()}
    with pytest.raises(RunError, match=r"upload of client 0: optimizer/w is torch.float64, expected torch.float32$"):
        two.server.check(0, 0, result)
