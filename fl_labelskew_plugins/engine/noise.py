"""Integer noise for sums in a ring: the distributed discrete Gaussian mechanism.

Kairouz, Liu, Steinke: The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML
2021 (theorem 1, algorithm 1). Difference: the paper rotates vectors and rounds randomly, so that few bits suffice.
Rounding to the nearest step lengthens a vector of ``d`` values by at most ``sqrt(d) / 2`` steps.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from fl_labelskew_registry import mistake
from numpy.typing import NDArray
from torch import Tensor

AT_ONCE = 2**16  # fits a core's cache
UNSURE = 2.0**-44  # difference of a draw and a probability below which more digits are compared
DIGITS = Context(prec=60)
TAIL = 10.0  # standard deviations for which the ring has room; 2e-23 of all values lie beyond
LEAST = 2.0
"""Minimum standard deviation of a client's noise, in steps: tau of theorem 1 is below 1e-15 per pair of clients."""
MULTIPLIER = "privacy_args.noise_multiplier"


@dataclass(frozen=True)
class SumNoise:
    """Noise on a sum; each client adds a part. Raises LabelSkewError if the ring has too few bits."""

    multiplier: float  # minimum standard deviation of the sum's noise, divided by `clip`
    clip: float  # maximum norm of one client's weighted values together, before rounding
    largest: float  # maximum of a value in the sum
    bits: int
    clients: int  # maximum number in a sum
    least: int  # minimum number in a sum
    size: int

    def __post_init__(self) -> None:
        if self.step <= 0:
            what = f"{self.multiplier:g} is too much noise for sums of {self.bits} bits"
            raise mistake(MULTIPLIER, what, "more comm_args.secure_bits, or less noise")
        if self.deviation < LEAST:
            least = f"{self.deviation:.2g} steps of the sum's integers, expected at least {LEAST:g}"
            use = "a larger value, a larger comm_args.secure_bits or a smaller comm_args.secure_clip"
            raise mistake(MULTIPLIER, f"with {self.multiplier:g}, the noise of one client has a std of {least}", use)

    @property
    def step(self) -> float:
        """Value of one step of the ring."""
        top = float(2 ** (self.bits - 1) - 1 - self.clients)  # each client's rounding adds half a step
        most = TAIL * self.multiplier * math.sqrt(self.clients / self.least)
        return (self.largest + most * self.clip) / (top - most * math.sqrt(self.size) / 2)

    @property
    def head_room(self) -> float:
        """Part of the ring for the noise, divided by ``largest``."""
        return self.step * float(2 ** (self.bits - 1) - 1 - self.clients) / self.largest - 1

    @property
    def norm(self) -> float:
        """Maximum norm of a client's rounded vector, in steps."""
        return self.clip / self.step + math.sqrt(self.size) / 2

    @property
    def deviation(self) -> float:
        """Standard deviation of a client's noise, in steps."""
        return self.multiplier * self.norm / math.sqrt(self.least)

    def clipped(self, values: Mapping[str, Tensor], share: float = 1.0) -> dict[str, Tensor]:
        """Scale float64 values to a norm (times ``share``) of at most ``clip``, and each to at most ``largest``.

        An error would reveal a larger value.
        """
        norm = share * math.sqrt(math.fsum(float(value.square().sum()) for value in values.values()))
        if not norm:
            return dict(values)
        peak = max(float(value.abs().max()) for value in values.values() if value.numel())
        factor = min(1.0, self.clip / norm, self.largest / peak) * (1 - 2**-40)  # margin for rounding errors
        return {name: value * factor for name, value in values.items()}

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """A client's noise, ``(size,)``."""
        return discrete_gaussian(self.size, self.deviation, generator)


def discrete_gaussian(size: int, sigma: float, generator: np.random.Generator) -> NDArray[np.int64]:
    r"""Draw ``(size,)`` values of the discrete Gaussian distribution; ``sigma``: above 0 and below 2**40.

    .. math:: P(x) \propto \exp(-x^2 / 2 \sigma^2), \quad x \in \mathbb Z

    Canonne, Kamath, Steinke, NeurIPS 2020, algorithms 2 and 3. Exact, except for the generator and the 60 digits of
    comparisons that float64 cannot decide.
    """
    variance, scale = Fraction(sigma) ** 2, math.floor(sigma) + 1
    centre, width = float(variance / scale), float(2 * variance)
    draws: NDArray[np.int64] = np.empty(size, np.int64)
    drawn = 0
    while drawn < size:
        laplace = _discrete_laplace(scale, generator)
        distance = np.abs(laplace)

        def exact(i: int, distance: NDArray[np.int64] = distance) -> Fraction:
            return (int(distance[i]) - variance / scale) ** 2 / (2 * variance)

        accepted = laplace[_chance((distance - centre) ** 2 / width, exact, generator)][: size - drawn]
        draws[drawn : drawn + len(accepted)] = accepted
        drawn += len(accepted)
    return draws


def _discrete_laplace(scale: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Some draws ``x`` with probabilities proportional to ``exp(-|x| / scale)``."""
    remainder = generator.integers(0, scale, AT_ONCE)
    remainder = remainder[_chance(remainder / scale, lambda i: Fraction(int(remainder[i]), scale), generator)]
    quotient = np.zeros_like(remainder)
    active = np.arange(len(remainder))
    while len(active := active[_chance(np.ones(len(active)), lambda _: Fraction(1), generator)]):
        quotient[active] += 1
    draws: NDArray[np.int64] = remainder + scale * quotient
    negative = generator.integers(0, 2, len(draws), dtype=bool)
    signed: NDArray[np.int64] = np.where(negative, -draws, draws)[~(negative & (draws == 0))]  # or 0 would count twice
    return signed


def _chance(
    exponent: NDArray[np.float64], exact: Callable[[int], Fraction], generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw True with probability ``exp(-exponent)``; ``exact``: the exponent of an index, without rounding."""
    chance, draw = np.exp(-exponent), generator.random(len(exponent))
    result: NDArray[np.bool_] = draw < chance
    for i in np.flatnonzero(np.abs(draw - chance) < UNSURE):  # 53 bits may not decide: draw 128 more
        more = Fraction(int.from_bytes(generator.bytes(16), "little"), 2**181)
        drawn, power = Fraction(float(draw[i])) + more, exact(int(i))
        decimal = [DIGITS.divide(Decimal(f.numerator), Decimal(f.denominator)) for f in (drawn, -power)]
        result[i] = decimal[0] < DIGITS.exp(decimal[1])
    return result
