"""A tensor of each dtype and form that is sent, and a mapping."""

import torch

EVERY = {
    "steps": torch.tensor(7),
    "conv/weight": torch.randn(3, 2, 5, 5),
    "empty": torch.empty(0, 4),
    "mask": torch.tensor([True, False, True]),
    "half": torch.randn(7).half(),
    "brain": torch.randn(5).bfloat16(),
    "counts": torch.arange(10) - 5,
    "bytes": torch.arange(9, dtype=torch.uint8),
    "double": torch.randn(2, 2).double(),
    "columns": torch.randn(6, 4).t(),
    "every other": torch.arange(20, dtype=torch.int16)[::2],
    "small": torch.tensor([-1, 1], dtype=torch.int8),
    "int": torch.tensor([[-1]], dtype=torch.int32),
    "trained": torch.randn(2, requires_grad=True),
}
META = {"loss": [0.5, 1e-9], "name": "Größe 😀", "none": None, "deep": {"a": [1, True]}}


def same(got, expected):
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert torch.equal(got[name], tensor)
