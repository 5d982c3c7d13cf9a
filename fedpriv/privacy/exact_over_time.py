"""Noise that is correlated between rounds, as real numbers: rows of C^-1 Z for a banded or a buffered matrix C.

The row of round t is ``w_t = z_t - c_1 w_(t-1) - c_2 w_(t-2) - ...``, that is ``sum_s h_(t-s) z_s``, where h is the
first column of C^-1 and z_s are the real normal numbers that the random streams of round s determine. float64 computes
the recursion (`NoiseHistory`); what it cannot decide is computed from the sum, in multiple precision. The bound on the
error of float64 is in docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.errors import PrivacyError
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.exact_rounding import GaussianRows, multiplied
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.randomness.keystream import NARROW
from fedpriv.randomness.real_draws import Interval, real_normal
from fedpriv.randomness.short_rows import BoundedRows

Array = NDArray[np.float64]
_UNIT = 2.0**-53
_LIMITS = NARROW
_FURTHER_WORDS = 2  # of a draw without a bound: with them its own rounding is all that it errs by
_PRECISION = 640  # bits of the column of C^-1: beyond those of a number that ten words leave undecided


class InverseColumn:
    """The first column of C^-1, in multiple precision: h_0 = 1, h_n = -(c_1 h_(n-1) + c_2 h_(n-2) + ...).

    The recursion is computed in whole multiples of 2^-640, each rounded once. Intervals would widen in every step, and
    after some 1500 rounds of a long band hold nothing any more; a rounding instead acts like a change of z, so that all
    of them together change h_n by at most their bound times ``|h_0| + ... + |h_n|``.

    Args:
        factor: The matrix C.
    """

    def __init__(self, factor: Factor) -> None:
        self._band = _over_one_denominator(factor.band)
        self._scales = _over_one_denominator(factor.scales)
        self._decays = [decay.as_integer_ratio() for decay in factor.decays]
        self._weights = list(zip(factor.scales, factor.decays, strict=True))
        one = 1 << _PRECISION
        self._numbers = [one]
        self._sums = [one]  # of the absolute values up to each number
        self._buffers = [one] * len(factor.scales)

    def number(self, index: int) -> Interval:
        """Returns h_index, as an interval."""
        from mpmath.libmp import from_man_exp

        while len(self._numbers) <= index:
            self._append()
        # each round is rounded once, and so is each buffer, whose errors go on in it
        roundings = 1 + sum(scale * _length_of_memory(decay, index) for scale, decay in self._weights)
        error = math.ceil(1.01 * roundings) * self._sums[index] // (1 << _PRECISION) + 1
        number = self._numbers[index]
        return from_man_exp(number - error, -_PRECISION), from_man_exp(number + error, -_PRECISION)

    def _append(self) -> None:
        """Computes one more number."""
        numerators, denominator = self._band
        total = sum(c * h for c, h in zip(numerators, reversed(self._numbers), strict=False)) // denominator
        numerators, denominator = self._scales
        total += sum(scale * buffer for scale, buffer in zip(numerators, self._buffers, strict=True)) // denominator
        self._numbers.append(-total)
        self._sums.append(self._sums[-1] + abs(total))
        for index, (numerator, denominator) in enumerate(self._decays):
            self._buffers[index] = self._buffers[index] * numerator // denominator - total

    def absolute_sum(self, count: int) -> float:
        """Returns a bound on ``|h_0| + ... + |h_(count - 1)|``."""
        self.number(count - 1)
        try:
            return self._sums[count - 1] / (1 << _PRECISION) * (1 + 1e-9)
        except OverflowError:
            return math.inf


def _over_one_denominator(numbers: Sequence[float]) -> tuple[list[int], int]:
    """Returns numbers of float64 as exact fractions: their numerators, and the denominator of all of them."""
    ratios = [number.as_integer_ratio() for number in numbers]
    denominator = max((bottom for _, bottom in ratios), default=1)  # powers of two
    return [top * (denominator // bottom) for top, bottom in ratios], denominator


def _length_of_memory(decay: float, rounds: int) -> float:
    """Returns a bound on ``1 + decay + decay^2 + ...``, of so many terms."""
    return min(float(rounds), 1.01 / (1 - decay))


@lru_cache(maxsize=8)
def inverse_column(factor: Factor) -> InverseColumn:
    """Returns the first column of C^-1, computed once in a process."""
    return InverseColumn(factor)


@dataclass(frozen=True)
class CorrelatedRows:
    """The noise of one round, and of those before it.

    Attributes:
        history: Filters the noise of each round once, in the order of rounds.
        column: The first column of C^-1.
        keys_of: Returns the keys of the rows' random streams in a round, 32 bytes each.
        round: The round.
        scales: Standard deviation of each row's unit noise.
        dim: Length of a row.
    """

    history: NoiseHistory
    column: InverseColumn
    keys_of: Callable[[int], Sequence[bytes]]
    round: int
    scales: Sequence[float]
    dim: int

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`. It filters these rows, and so is called once for each of them."""
        unit = GaussianRows(self.keys_of(self.round), [1.0] * len(self.scales), self.dim, _LIMITS)
        draws, errors, largest = unit.approximate(rows)
        largest = self._with_numbers(draws, rows, largest)
        error, largest = self.history.widen(rows, float(errors.max()), largest)
        filtered = self.history.filtered(torch.from_numpy(draws), rows, self.round)

        factor, growth = self.history.factor, self.column.absolute_sum(self.round + 1)
        if factor.scales:
            buffers = self.history.largest_in_buffers(rows)
            error, size = error_of_buffers(factor, self.round, growth, error, largest, buffers)
        else:
            largest_filtered = self.history.largest_filtered(rows, filtered)
            error, size = error_of_band(factor.band, growth, error, largest, largest_filtered)
        scales = np.array(self.scales[rows], dtype=np.float64)[:, None]
        scaled_errors = scales * (error + 1.01 * _UNIT * size)  # the product with the scale is rounded
        noise = filtered.numpy()  # of which the history has a copy
        noise *= scales
        return BoundedRows(noise, scaled_errors, 1.01 * size * float(scales.max()))

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        from mpmath.libmp import fzero
        from mpmath.libmp.libmpi import mpi_add, mpi_mul

        total: Interval = (fzero, fzero)
        for earlier in range(self.round + 1):
            draw = real_normal(self.keys_of(earlier)[row], self.dim, column, extra)
            if draw is None:
                return None
            term = mpi_mul(self.column.number(self.round - earlier), draw, _PRECISION)
            total = mpi_add(total, term, _PRECISION)
        return multiplied(total, self.scales[row])

    def _with_numbers(self, draws: Array, rows: slice, largest: float) -> float:
        """Replaces draws without a bound, so that later rounds have one; returns the largest of all draws."""
        from mpmath.libmp import to_float

        for position in np.flatnonzero(np.isnan(draws)).tolist():
            row, column = divmod(position, self.dim)
            key = self.keys_of(self.round)[(rows.start or 0) + row]
            # the first word alone may leave it open by far more than the bound on the other draws
            for extra in range(_FURTHER_WORDS, _PRECISION // 64):
                interval = real_normal(key, self.dim, column, extra)
                if interval is not None:
                    break
            else:
                raise PrivacyError("a normal number has no bound: the random stream is broken")
            draws[row, column] = to_float(interval[0])
            largest = max(largest, 1.01 * abs(draws[row, column]))
        return largest


def error_of_band(
    band: Sequence[float], growth: float, error: float, largest: float, filtered: float
) -> tuple[float, float]:
    """Returns bounds on the error of the filtered noise of float64, and on its absolute value.

    Args:
        band: Numbers of C below its diagonal.
        growth: Sum of the absolute values of h up to this round.
        error: Bound on the error of all unit noise so far.
        largest: Bound on the absolute value of all unit noise so far.
        filtered: The largest absolute value of filtered noise of float64 so far.
    """
    products = np.abs(np.array(band)) * filtered
    # a partial sum is at most all that was added to the unit noise, and all that is still to come to the filtered one
    partial_sums = np.minimum(largest + products.cumsum(), filtered + products.sum() - products.cumsum())
    rounding = 1.01 * _UNIT * float(products.sum() + partial_sums.sum())
    return 1.01 * growth * (error + rounding), 1.01 * filtered


def error_of_buffers(
    factor: Factor, rounds: int, growth: float, error: float, largest: float, buffers: Sequence[float]
) -> tuple[float, float]:
    """Returns bounds on the error of the filtered noise of float64, and on its absolute value.

    Args:
        factor: The matrix C.
        rounds: Number of rounds before this one.
        growth: Sum of the absolute values of h up to this round.
        error: Bound on the error of all unit noise so far.
        largest: Bound on the absolute value of all unit noise so far.
        buffers: The largest absolute value that each buffer of float64 has had.
    """
    weight = sum(scale * buffer for scale, buffer in zip(factor.scales, buffers, strict=True))
    # a product with each buffer, and a difference after each
    rounding = 1.01 * _UNIT * (weight + len(buffers) * (largest + weight))
    # a product and a sum in each buffer and round, which stay in it
    for scale, decay, buffer in zip(factor.scales, factor.decays, buffers, strict=True):
        rounding += scale * _length_of_memory(decay, rounds) * 2.03 * _UNIT * buffer
    return 1.01 * growth * (error + rounding), 1.01 * (largest + weight)
