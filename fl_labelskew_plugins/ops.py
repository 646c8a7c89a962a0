"""Tensor helpers of several plugins, and workarounds for pitfalls of torch and Python.

``C`` classes, ``B`` samples of a batch, ``d`` features, ``n_c`` a client's samples of class ``c``.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any, Literal, cast

import numpy as np
import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, LocalWork, Total
from torch import Tensor, nn

Scaling = Literal["indicator", "proportional"]
Missing = Literal["one", "mask"]  # logits of classes without samples


def full(tensor: Tensor) -> Tensor:
    """A tensor of any type in float32, or unchanged if it is float64."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which autocast keeps the precision of matrix products."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def added(numbers: Iterable[float]) -> float:
    """Sum from left to right; Python's ``sum`` rounds differently from 3.12 on.

    >>> added([0.1] * 10)
    0.9999999999999999
    """
    return reduce(operator.add, numbers, 0.0)


def on_device(client: ClientView, name: str, tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``, copied once per round; a copy per batch would stall a GPU."""
    if tensor.device == device:
        return tensor
    key = f"{name}@{device}"
    if key not in client.scratch:
        client.scratch[key] = tensor.to(device)
    return cast(Tensor, client.scratch[key])


def frozen_model(client: ClientView, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A frozen copy of the client's model, or one with other ``weights``."""
    assert client.frozen is not None
    assert client.model is not None
    return client.frozen(weights or client.model.state_dict())


def from_teacher(batch: Batch, client: ClientView, *, features: bool = False) -> Tensor | None:
    """Logits ``(B, C)``, or features ``(B, d)``, of the frozen model ``client.scratch["teacher"]``, if any."""
    teacher = client.scratch.get("teacher")
    if teacher is None:
        return None
    with torch.no_grad():
        return cast(Tensor, teacher.features(batch.inputs) if features else teacher(batch.inputs))


def noise_of(client: ClientView) -> np.random.Generator:
    """The client's secret generator for privacy noise."""
    if client.noise is None:
        raise RuntimeError("Expected `client.noise` to be a generator but got None: privacy noise needs one.")
    return client.noise


def on_grid(values: Tensor, scale: float) -> Tensor:
    """Round values with noise of this scale to multiples of a power of two, at most a thousandth of the scale.

    The last bits of floating-point noise show whether anything was added to it, even a tiny update (Mironov, "On
    Significance of the Least Significant Bits for Differential Privacy", CCS 2012). ``values`` must be float64.

    >>> on_grid(torch.tensor([0.12345], dtype=torch.float64), scale=1.0)
    tensor([0.1230], dtype=torch.float64)
    """
    grid = 2.0 ** (math.floor(math.log2(scale)) - 10)
    return torch.round(values / grid) * grid


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"Expected argument `{name}` to be one of {', '.join(allowed)} but got {value!r}.")


def check_per_class(name: str, tensor: Tensor, logits: Tensor) -> None:
    """Raise ValueError unless ``tensor`` is ``(C,)`` and ``logits`` ``(B, C)``."""
    if tensor.shape != logits.shape[-1:]:
        expected = tuple(logits.shape[-1:])
        raise ValueError(f"Expected argument `{name}` to be of shape {expected} but got {tuple(tensor.shape)}.")


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """``(B,)`` labels to ``(B, C)`` zeros and ones, without the host sync of torch's ``one_hot``."""
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype)


class _ValueWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient.to(tensor.dtype))
        return value.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grads[0], None, None


def value_with_gradient(tensor: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """A scalar with a known ``gradient`` with respect to ``tensor``, without autograd's bookkeeping."""
    return cast(Tensor, _ValueWithGradient.apply(tensor, value, gradient))


def restricted_logits(
    logits: Tensor, counts: Tensor, *, alpha: float, min_count: int = 1, scaling: Scaling = "indicator"
) -> Tensor:
    r"""Multiply the logits of the classes that a client lacks by ``alpha`` (FedRS and MAP, eq. 8).

    ``scaling="proportional"`` multiplies by :math:`\alpha + (1 - \alpha) n_c / \max_j n_j`, as the authors' code, and
    ignores ``min_count``.

    Args:
        logits: ``(B, C)``; their bias, which the paper does not have, is scaled too.
        counts: ``(C,)``, ``n_c``.
        alpha: factor of a missing class, 0 .. 1; 0 freezes missing proxies.
        min_count: a class with fewer samples is missing.
        scaling: ``indicator`` or ``proportional``.

    >>> restricted_logits(torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([4, 0, 1]), alpha=0.5)
    tensor([[2., 1., 2.]])
    >>> restricted_logits(torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([4, 0, 2]), alpha=0.5, scaling="proportional")
    tensor([[2.0000, 1.0000, 1.5000]])
    """
    check_choice("scaling", scaling, ("indicator", "proportional"))
    check_per_class("counts", counts, logits)
    if alpha == 1:
        return logits
    dtype = full(logits.new_empty(0)).dtype
    if scaling == "indicator":
        # masked_fill keeps alpha in the precision of the logits
        factor = torch.ones_like(counts, dtype=dtype).masked_fill(counts < min_count, alpha)
    else:
        share = counts.to(dtype) / counts.max().clamp(min=1)
        factor = alpha + (1 - alpha) * share
    return torch.where(logits == -math.inf, logits, logits * factor)  # a masked logit stays masked; 0 * inf is NaN


def unit(vectors: Tensor) -> Tensor:
    """Each row ``(..., d)`` divided by its length; rows of zeros are unchanged.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    vectors = full(vectors)
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.masked_fill(length == 0, 1)


def mmd(features: Tensor, other: Tensor) -> Tensor:
    r"""Squared maximum mean discrepancy of two sets of features (MAP, eq. 12), as in deep adaptation networks.

    .. math:: \overline{K_{ss}} + \overline{K_{tt}} - 2 \overline{K_{st}}, \quad
        K(x, y) = \sum_{i=-2}^{2} \exp\bigl(-\lVert x - y \rVert^2 / (2^i b)\bigr)

    ``features`` ``(n, d)``, ``other`` ``(m, d)``; ``b``: the mean squared distance of samples of both sets, without
    gradient. If a set has fewer than two samples, value and gradient are 0, since the gradient would be unbounded.

    >>> x, y = torch.zeros(2, 1), torch.ones(2, 1)
    >>> round(mmd(x, y).item(), 4)  # b = 2/3: 10 - 2(exp(-3/8) + exp(-3/4) + exp(-3/2) + exp(-3) + exp(-6))
    7.1299
    """
    if len(features) < 2 or len(other) < 2:
        return full(features)[:0].sum()  # a zero with a gradient
    both = torch.cat([full(features), full(other)])
    n = both.shape[0]
    squared = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()
    # the mean distance of equal features is 0, and 0 / 0 is NaN
    mean = (squared.detach().sum() / (n * n - n)).clamp(min=torch.finfo(both.dtype).tiny * 2.0**10)
    divisors = mean * 2.0 ** (torch.arange(5, device=both.device, dtype=both.dtype) - 2)
    kernel = torch.exp(-squared / divisors[:, None, None]).sum(dim=0)
    # a quadratic form with weights 1/n of one set and -1/m of the other
    weights = [both.new_full((len(x),), sign / len(x)) for x, sign in ((features, 1), (other, -1))]
    weight = torch.cat(weights)
    return (kernel * (weight[:, None] * weight)).sum()


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the features ``(C, d)`` and number of samples ``(C,)`` int64 of each class."""
    with torch.no_grad(), full_precision(features.device):
        member = one_hot(labels, num_classes, full(features).dtype)
        return member.T.mm(full(features)), member.sum(dim=0).long()


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Prototypes: mean features ``(C, d)`` of each class, 0 for missing classes; and counts ``(C,)``.

    >>> class_means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), 2)
    (tensor([[0.],
            [2.]]), tensor([0, 2]))
    """
    sums, counts = class_sums(features, labels, num_classes)
    return sums / counts.clamp(min=1)[:, None], counts


def own_sums(client: ClientView) -> dict[str, Tensor]:
    """A client's contribution to prototypes: :func:`class_sums` with its final weights."""
    if client.features is None:
        raise RuntimeError("Expected `client.features` to be a function but got None: prototypes are made with it.")
    features, labels = client.features()
    with torch.no_grad():
        sums, counts = class_sums(features, labels, len(client.counts))
    return {"sums": sums, "counts": counts}


def sum_shapes(federation: Federation) -> dict[str, tuple[int, ...]]:
    """Shapes of :func:`own_sums`."""
    return {"sums": (federation.num_classes, federation.num_features), "counts": (federation.num_classes,)}


def global_prototypes(total: Total, shared: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    r"""``shared`` with the prototypes of this round; a class without samples keeps its last prototype.

    .. math:: g_c = \sum_k \sum_{n: y_n = c} z_{kn} / \sum_k n_{kc}

    ``total``: of :func:`own_sums`; ``shared``: the last ``prototypes`` ``(C, d)``, and ``known`` ``(C,)``, the classes
    with a prototype, if any.

    >>> from fl_labelskew_registry import Total
    >>> sums, counts = torch.tensor([[6.0], [0.0]]), torch.tensor([3, 0])
    >>> global_prototypes(Total({"sums": sums, "counts": counts}, clients=2), {})
    {'prototypes': tensor([[2.],
            [0.]]), 'known': tensor([ True, False])}
    """
    if not {"sums", "counts"} <= total.tensors.keys():
        return shared
    sums, counts = total.tensors["sums"], total.tensors["counts"]
    prototypes, known = sums / counts.clamp(min=1)[:, None], counts > 0
    if "prototypes" in shared:
        before = {name: shared[name].to(prototypes.device) for name in ("prototypes", "known")}
        prototypes = torch.where(known[:, None], prototypes, before["prototypes"])
        known = known | before["known"]
    return {**shared, "prototypes": prototypes, "known": known}


def private_model(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor] | None:
    """The state dict under ``prefix`` in a client's private state, if any.

    >>> private_model({"hpm.bias": torch.ones(1), "other": torch.zeros(1)}, "hpm.")
    {'bias': tensor([1.])}
    """
    weights = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return weights or None


def keep_private(client: ClientView, prefix: str, weights: Mapping[str, Tensor]) -> None:
    """Store tensors in a client's private state, under ``prefix``."""
    for name, tensor in weights.items():
        # in host memory, not shared with the model
        client.state[prefix + name] = tensor.detach().to("cpu", copy=True)


def add_proximal(work: LocalWork, mu: float) -> None:
    r"""Add the gradient of a proximal term ``mu/2 ||w - w_t||^2`` to the gradients of a step (FedProx, eq. 2).

    .. math:: g \leftarrow g + \mu (w - w_t)
    """
    if mu == 0:
        return
    gradients = work.gradients()
    weights: list[Tensor] = [work.parameters[name] for name in gradients]
    with torch.no_grad():
        moved = torch._foreach_sub(weights, [work.start[name] for name in gradients])
        torch._foreach_add_(list(gradients.values()), list(moved), alpha=mu)


def sum_of_coefficients(work: LocalWork) -> float:
    r"""``||a||_1``: the weight of a client's gradients in its change, in steps of plain SGD (FedNova, section 3).

    .. math:: w_0 - w_K = \eta \sum_j a_j g_j

    Computed as the change for gradients of 1.
    """
    moved = momentum = 0.0
    for _ in range(work.steps):
        momentum = work.momentum * momentum + 1
        moved += momentum
    return moved
