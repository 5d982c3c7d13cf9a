"""Noise that is correlated between rounds, as real numbers: rows of C^-1 Z for a banded matrix C.

The row of round t is ``w_t = z_t - c_1 w_(t-1) - ... - c_b w_(t-b)``, that is ``sum_s h_(t-s) z_s``, where h is the
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
from fedpriv.privacy.exact_rounding import GaussianRows, multiplied
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.randomness.real_draws import Interval, real_normal
from fedpriv.randomness.short_rows import BoundedRows

Array = NDArray[np.float64]
_UNIT = 2.0**-53
_FURTHER_WORDS = 2  # of a draw without a bound: with them its own rounding is all that it errs by
_PRECISION = 640  # bits of the column of C^-1: beyond those of a number that ten words leave undecided


class InverseColumn:
    """The first column of C^-1, as intervals of multiple precision: h_0 = 1, h_n = -(c_1 h_(n-1) + c_2 h_(n-2) ...).

    Args:
        band: Numbers of C below its diagonal.
    """

    def __init__(self, band: Sequence[float]) -> None:
        from mpmath.libmp import from_float, from_man_exp

        one = from_man_exp(1, 0)
        self._band = [(from_float(c), from_float(c)) for c in band]
        self._numbers: list[Interval] = [(one, one)]
        self._sums = [1.0]  # of the absolute values up to each number

    def number(self, index: int) -> Interval:
        """Returns h_index."""
        from mpmath.libmp import fzero, to_float
        from mpmath.libmp.libmpi import mpi_add, mpi_mul, mpi_neg

        while len(self._numbers) <= index:
            total: Interval = (fzero, fzero)
            for c, h in zip(self._band, reversed(self._numbers), strict=False):
                total = mpi_add(total, mpi_mul(c, h, _PRECISION), _PRECISION)
            self._numbers.append(mpi_neg(total))
            size = max(abs(to_float(total[0])), abs(to_float(total[1])))
            self._sums.append(self._sums[-1] + size * (1 + 1e-9))
        return self._numbers[index]

    def absolute_sum(self, count: int) -> float:
        """Returns a bound on ``|h_0| + ... + |h_(count - 1)|``."""
        self.number(count - 1)
        return self._sums[count - 1]


@lru_cache(maxsize=8)
def inverse_column(band: tuple[float, ...]) -> InverseColumn:
    """Returns the first column of C^-1 for these numbers of C below its diagonal, computed once in a process."""
    return InverseColumn(band)


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
        unit = GaussianRows(self.keys_of(self.round), [1.0] * len(self.scales), self.dim)
        draws, errors, largest = unit.approximate(rows)
        largest = self._with_numbers(draws, rows, largest)
        error, largest = self.history.widen(rows, float(errors.max()), largest)
        filtered = self.history.filtered(torch.from_numpy(draws), rows, self.round).numpy()

        error, size = error_of_filter(self.history.band, self.column.absolute_sum(self.round + 1), error, largest)
        scales = np.array(self.scales[rows], dtype=np.float64)[:, None]
        scaled_errors = scales * (error + 1.01 * _UNIT * size)  # the product with the scale is rounded
        filtered *= scales  # the history has a copy
        return BoundedRows(filtered, scaled_errors, 1.01 * size * float(scales.max()))

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

        for row, column in np.argwhere(np.isnan(draws)).tolist():
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


def error_of_filter(band: Sequence[float], growth: float, error: float, largest: float) -> tuple[float, float]:
    """Returns bounds on the error of the filtered noise of float64, and on its absolute value.

    Args:
        band: Numbers of C below its diagonal.
        growth: Sum of the absolute values of h up to this round.
        error: Bound on the error of all unit noise so far.
        largest: Bound on the absolute value of all unit noise so far.
    """
    size = 1.01 * growth * largest
    weight = sum(abs(c) for c in band)
    # a product with each coefficient, and a difference after each
    rounding = 1.01 * _UNIT * (weight * size + len(band) * (largest + weight * size))
    if not 2 * error + rounding <= 0.005 * largest:  # then the bound on the size would not hold
        return math.inf, math.inf
    return 1.01 * growth * (error + rounding), size
