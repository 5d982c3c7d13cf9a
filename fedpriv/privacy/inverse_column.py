"""The first column of the inverse of a matrix C over rounds, in multiple precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedpriv.privacy.correlated import Factor
from fedpriv.randomness.extended_draws import Extended
from fedpriv.randomness.real_draws import Interval

PRECISION = 640
"""Number of bits after the binary point, enough for intervals that are computed from ten words of a stream."""


class InverseColumn:
    """The first column of C^-1, in multiple precision: h_0 = 1, h_n = -(c_1 h_(n-1) + c_2 h_(n-2) + ...).

    The recursion is computed in whole multiples of 2^-640, each rounded once. Intervals would become wider in every
    step, and would be useless after about 1500 rounds of a long band. A rounding error, in contrast, acts like a change
    of the input of the recursion. So all rounding errors together change h_n by at most their bound times ``|h_0| + ...
    + |h_n|``.

    Args:
        factor: The matrix C.
    """

    def __init__(self, factor: Factor) -> None:
        self._band = _over_one_denominator(factor.band)
        self._scales = _over_one_denominator(factor.scales)
        self._decays = [decay.as_integer_ratio() for decay in factor.decays]
        self._weights = list(zip(factor.scales, factor.decays, strict=True))
        one = 1 << PRECISION
        self._numbers = [one]
        self._sums = [one]  # of the absolute values up to each number
        self._buffers = [one] * len(factor.scales)
        self._extended = list[np.longdouble]()

    def number(self, index: int) -> Interval:
        """Returns h_index, as an interval."""
        from mpmath.libmp import from_man_exp

        self._extend_to(index)
        # each round is rounded once, and so is each buffer, which accumulates its errors
        roundings = 1 + sum(scale * bound_memory_length(decay, index) for scale, decay in self._weights)
        error = math.ceil(1.01 * roundings) * self._sums[index] // (1 << PRECISION) + 1
        number = self._numbers[index]
        return from_man_exp(number - error, -PRECISION), from_man_exp(number + error, -PRECISION)

    def _extend_to(self, index: int) -> None:
        """Computes all numbers up to a given index."""
        while len(self._numbers) <= index:
            self._append()

    def _append(self) -> None:
        """Computes the next number."""
        numerators, denominator = self._band
        total = sum(c * h for c, h in zip(numerators, reversed(self._numbers), strict=False)) // denominator
        numerators, denominator = self._scales
        total += sum(scale * buffer for scale, buffer in zip(numerators, self._buffers, strict=True)) // denominator
        self._numbers.append(-total)
        self._sums.append(self._sums[-1] + abs(total))
        for index, (numerator, denominator) in enumerate(self._decays):
            self._buffers[index] = self._buffers[index] * numerator // denominator - total

    def extended(self, count: int) -> Extended:
        """Returns ``h_0, ..., h_(count - 1)`` in extended precision, with errors of at most two units or 2^-600."""
        from mpmath.libmp import from_man_exp, mpf_sub, to_float
        from mpmath.libmp.libmpf import from_float

        self._extend_to(count - 1)
        for index in range(len(self._extended), count):
            number = from_man_exp(self._numbers[index], -PRECISION)
            upper = to_float(number)
            rest = to_float(mpf_sub(number, from_float(upper)))
            self._extended.append(np.longdouble(upper) + np.longdouble(rest))
        return np.array(self._extended[:count], dtype=np.longdouble)

    def absolute_sum(self, count: int) -> float:
        """Returns a bound on ``|h_0| + ... + |h_(count - 1)|``."""
        self._extend_to(count - 1)
        try:
            return self._sums[count - 1] / (1 << PRECISION) * (1 + 1e-9)
        except OverflowError:
            return math.inf


def _over_one_denominator(numbers: Sequence[float]) -> tuple[list[int], int]:
    """Returns numbers of float64 as exact fractions: their numerators, and the denominator of all of them."""
    ratios = [number.as_integer_ratio() for number in numbers]
    denominator = max((bottom for _, bottom in ratios), default=1)  # powers of two
    return [top * (denominator // bottom) for top, bottom in ratios], denominator


def bound_memory_length(decay: float, rounds: int) -> float:
    """Returns a bound on ``1 + decay + decay^2 + ...``, of this number of terms."""
    return min(float(rounds), 1.01 / (1 - decay))


@lru_cache(maxsize=8)
def inverse_column(factor: Factor) -> InverseColumn:
    """Returns the first column of C^-1, computed once in a process."""
    return InverseColumn(factor)
