from fl_labelskew_plugins import seeds


def test_streams_are_fixed_and_apart():
    # the same on every machine: results of a recipe can be remade
    assert seeds.torch_seed(0, "batches", 3, 5) == 4774640304652707098
    draws = {
        seeds.torch_seed(seed, purpose, round, client)
        for seed in (0, 1)
        for purpose in ("batches", "method")
        for round in (0, 1)
        for client in (0, 1)
    }
    assert len(draws) == 16


def test_generators_repeat():
    a, b = (seeds.torch_generator(1, "x", 2, 3) for _ in range(2))
    assert a.initial_seed() == b.initial_seed()
    assert seeds.numpy_generator(1, "x").integers(1000) == seeds.numpy_generator(1, "x").integers(1000)
