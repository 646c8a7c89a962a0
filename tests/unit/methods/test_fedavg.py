from fl_labelskew_plugins.methods.fedavg import FedAvg


def test_every_hook_is_neutral(world, assert_plain, federation):
    method = FedAvg()
    assert_plain(method)
    assert [(s.epochs, s.upload) for s in method.stages(3)] == [(3, True)]
    assert method.contribute(world.client()) == {}
    assert method.deviations() == method.warnings(federation) == []
