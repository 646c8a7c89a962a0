import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import entries, load
from fl_labelskew_registry.testing import check_dataset, check_method, check_network, check_optimizer, check_partition

from fl_labelskew_plugins.models.mlp import MLP
from fl_labelskew_plugins.optimizers.fedopt import FedOpt
from fl_labelskew_plugins.partition.iid import IID


def ours(kind):
    return [entry.name for entry in entries(kind) if entry.distribution == "fl-labelskew-plugins"]


@pytest.mark.parametrize(
    ("check", "plugin"),
    [
        *[(check_method, load("methods", name)) for name in ours("methods")],
        *[(check_optimizer, load("optimizers", name)) for name in ours("optimizers")],
        *[(check_network, MLP), (check_dataset, load("datasets", "digits")), (check_partition, IID)],
    ],
)
def test_checks_accept_plugins_of_this_package(check, plugin):
    check(plugin)


@pytest.mark.parametrize(
    ("check", "base", "hook", "answer", "line"),
    [
        (check_method, load("methods", "fedavg"), "contribute", None, "A.contribute returned None; expected Mapping"),
        (check_method, load("methods", "fedavg"), "loss", {}, "A.loss returned an empty dict; expected terms"),
        (check_optimizer, FedOpt, "step", {}, "A.step returned []; expected ['steps', 'w']"),
        (check_network, MLP, "build", None, "A.build returned None; expected nn.Module"),
        (check_dataset, load("datasets", "digits"), "load", None, "A.load returned None; expected Data"),
        (check_partition, IID, "split", [np.arange(6)], "A.split returned 1 parts; expected one for each of 3 clients"),
        (check_partition, IID, "split", [np.arange(9)] * 3, "A.split gave a sample to two clients"),
    ],
)
def test_a_defect_is_one_line(check, base, hook, answer, line):
    plugin = type("A", (base,), {hook: lambda self, *args, **more: answer})
    assert message(lambda: check(plugin), kind=AssertionError).startswith(line)
