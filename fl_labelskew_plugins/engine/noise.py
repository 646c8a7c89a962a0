"""Noise in whole numbers for sums in a ring: the distributed discrete Gaussian mechanism.

Kairouz, Liu, Steinke: The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML
2021 (theorem 1, algorithm 1). Each client clips the norm of what it adds, rounds it to steps of the ring, and adds
discrete Gaussian noise; whoever reads the sum finds the noise of all of them. Where the paper differs: it rounds at
random, again and again until the norm is small enough, and rotates vectors at random, so that a ring of few bits is
enough; here each value goes to the nearest step, which lengthens a vector of ``d`` values by ``sqrt(d) / 2`` steps at
most, and the noise is in proportion to the lengthened norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from fl_labelskew_registry import mistake
from numpy.typing import NDArray
from torch import Tensor

AT_ONCE = 2**16
"""Draws at once, so that they stay in a core's cache."""
UNSURE = 2.0**-44
"""A draw that is nearer than this to the chance that it is compared with is compared again, in more digits."""
DIGITS = Context(prec=60)
TAIL = 10.0
"""Standard deviations of the noise for which the ring has room; beyond are 2e-23 of all values."""
LEAST = 2.0
"""Least standard deviation of a client's noise, in steps: sums of it are as good as one such noise, tau of theorem 1 is
below 1e-15 for each pair of clients."""
MULTIPLIER = "privacy_args.noise_multiplier"


@dataclass(frozen=True)
class SumNoise:
    """Noise on the sum of clients' vectors, of which each client adds its part.

    Args:
        multiplier: least standard deviation of the sum's noise, over the largest norm that one client may add.
        clip: that norm, of a client's weighted values together, before they are rounded.
        largest: the most that a value of the sum can be.
        bits: of the ring.
        clients: the most that are added up, and so the most noise.
        least: the fewest that a sum may be of, and so the least.
        size: values of a vector.

    Raises:
        LabelSkewError: the ring has too few bits for it, or steps too large.
    """

    multiplier: float
    clip: float
    largest: float
    bits: int
    clients: int
    least: int
    size: int

    def __post_init__(self) -> None:
        if self.step <= 0:
            what = f"{self.multiplier:g} needs more room than sums of {self.bits} bits have"
            raise mistake(MULTIPLIER, what, "more comm_args.secure_bits, or less noise")
        if self.deviation < LEAST:
            what = (
                f"{self.multiplier:g} is noise of {self.deviation:.2g} steps of a client, and at least {LEAST:g} hide"
            )
            raise mistake(MULTIPLIER, what, "more noise, more comm_args.secure_bits or a smaller comm_args.secure_clip")

    @property
    def step(self) -> float:
        """What a whole number is worth."""
        top = float(2 ** (self.bits - 1) - 1 - self.clients)  # each client's rounding adds half a step
        most = TAIL * self.multiplier * math.sqrt(self.clients / self.least)
        return (self.largest + most * self.clip) / (top - most * math.sqrt(self.size) / 2)

    @property
    def head_room(self) -> float:
        """Room that the ring keeps for the noise, over ``largest``."""
        return self.step * float(2 ** (self.bits - 1) - 1 - self.clients) / self.largest - 1

    @property
    def norm(self) -> float:
        """Largest norm, in steps, of one client's rounded vector."""
        return self.clip / self.step + math.sqrt(self.size) / 2

    @property
    def deviation(self) -> float:
        """Standard deviation, in steps, of one client's part."""
        return self.multiplier * self.norm / math.sqrt(self.least)

    def clipped(self, values: Mapping[str, Tensor], share: float = 1.0) -> dict[str, Tensor]:
        """The same values, float64, shortened so that, weighted by ``share``, they are no longer than they may be.

        None is larger than ``largest`` then: whether one was is a client's own business, and no error.
        """
        norm = share * math.sqrt(math.fsum(float(value.square().sum()) for value in values.values()))
        if not norm:
            return dict(values)
        peak = max(float(value.abs().max()) for value in values.values() if value.numel())
        factor = min(1.0, self.clip / norm, self.largest / peak) * (1 - 2**-40)  # nothing that rounding adds is left
        return {name: value * factor for name, value in values.items()}

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """One client's part, ``(size,)``."""
        return discrete_gaussian(self.size, self.deviation, generator)


def discrete_gaussian(size: int, sigma: float, generator: np.random.Generator) -> NDArray[np.int64]:
    r"""Draws of the discrete Gaussian distribution (Canonne, Kamath, Steinke, NeurIPS 2020, algorithms 2 and 3).

    .. math:: P(x) \propto \exp(-x^2 / 2 \sigma^2), \quad x \in \mathbb Z

    They are exact but for the generator, and for the 60 digits of comparisons that float64 does not settle.

    Args:
        size: how many.
        sigma: above 0 and below 2**40; taken for the very number that the float is.
        generator: the only source of them.

    Returns:
        ``(size,)``.
    """
    variance, scale = Fraction(sigma) ** 2, math.floor(sigma) + 1
    centre, width = float(variance / scale), float(2 * variance)
    draws: NDArray[np.int64] = np.empty(size, np.int64)
    have = 0
    while have < size:
        laplace = _discrete_laplace(scale, generator)
        distance = np.abs(laplace)

        def exact(i: int, distance: NDArray[np.int64] = distance) -> Fraction:
            return (int(distance[i]) - variance / scale) ** 2 / (2 * variance)

        taken = laplace[_chance((distance - centre) ** 2 / width, exact, generator)][: size - have]
        draws[have : have + len(taken)] = taken
        have += len(taken)
    return draws


def _discrete_laplace(scale: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Some draws ``x`` with chances in proportion to ``exp(-|x| / scale)``."""
    part = generator.integers(0, scale, AT_ONCE)
    part = part[_chance(part / scale, lambda i: Fraction(int(part[i]), scale), generator)]
    whole = np.zeros_like(part)
    going = np.arange(len(part))
    while len(going := going[_chance(np.ones(len(going)), lambda _: Fraction(1), generator)]):
        whole[going] += 1
    draws: NDArray[np.int64] = part + scale * whole
    negative = generator.integers(0, 2, len(draws), dtype=bool)
    signed: NDArray[np.int64] = np.where(negative, -draws, draws)[~(negative & (draws == 0))]  # or 0 would come twice
    return signed


def _chance(
    exponent: NDArray[np.float64], exact: Callable[[int], Fraction], generator: np.random.Generator
) -> NDArray[np.bool_]:
    """For each of them yes with chance ``exp(-exponent)``; ``exact``: an exponent by its index, without rounding."""
    chance, draw = np.exp(-exponent), generator.random(len(exponent))
    yes: NDArray[np.bool_] = draw < chance
    for i in np.flatnonzero(np.abs(draw - chance) < UNSURE):  # 53 bits of a draw may not tell: 128 more do
        more = Fraction(int.from_bytes(generator.bytes(16), "little"), 2**181)
        drawn, power = Fraction(float(draw[i])) + more, exact(int(i))
        decimal = [DIGITS.divide(Decimal(f.numerator), Decimal(f.denominator)) for f in (drawn, -power)]
        yes[i] = decimal[0] < DIGITS.exp(decimal[1])
    return yes
