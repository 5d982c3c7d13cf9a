"""Rounds sums with noise to a grid as if the noise had been a real number.

What is released is ``grid * round((value + scale * Z) / grid)`` for a real normal or Laplace number Z: a function of
the answer of an exact mechanism, so that the proofs about real numbers hold, and no low bit tells more (Mironov 2012).
float64 decides all but about one number in a million: those whose sum is so near to a rounding boundary that its error
could have taken it across, and those whose draw is NaN because its error is not bounded. They are computed in multiple
precision, with more bits of the same random stream, until they are decided. Proofs are in
docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import PrivacyError
from fedpriv.randomness.gamma_draws import bounded_laplace_sums, real_laplace_sum
from fedpriv.randomness.keystream import WIDE, BoundedDraws, Keystream, RadiusLimits
from fedpriv.randomness.real_draws import Interval, check_functions, real_laplace, real_normal
from fedpriv.randomness.short_rows import LONGEST, BoundedRows, bounded_laplace_rows, bounded_normal_rows

Array = NDArray[np.float64]
GRID_BITS = 20
"""The grid is at least `2**-20`, and less than `2**-19`, of the noise scale."""
_UNIT = 2.0**-53
_LARGEST_SUM = 2.0**40  # grid steps: the rounding of larger sums would make too many numbers uncertain
_IN_CACHE = 2**15  # numbers of a row that are rounded at once
_MOST_EXTRA = 64  # words of further bits; undecided after so many with probability 2^-4000


class RealNoise(Protocol):
    """The noise of an answer as real numbers, and its approximation in float64."""

    def approximate(self, rows: slice) -> BoundedRows:
        """Returns an approximation of some rows."""
        ...

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """Returns an interval that contains one real number, and shrinks with every word of further bits."""
        ...


@dataclass(frozen=True)
class GaussianRows:
    """Independent normal noise.

    Attributes:
        keys: Keys of the rows' random streams, 32 bytes each.
        scales: Standard deviation of each row.
        dim: Length of a row.
        limits: Which draws get a bound.
    """

    keys: Sequence[bytes]
    scales: Sequence[float]
    dim: int
    limits: RadiusLimits = WIDE

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`."""
        keys, scales = self.keys[rows], self.scales[rows]
        if self.dim <= LONGEST and len(keys) > 1:
            return bounded_normal_rows(keys, self.dim, scales, self.limits)
        streams = [Keystream(key) for key in keys]
        draws = [
            stream.bounded_normal(self.dim, scale, self.limits) for stream, scale in zip(streams, scales, strict=True)
        ]
        return _stacked(draws)

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        return multiplied(real_normal(self.keys[row], self.dim, column, extra), self.scales[row])


@dataclass(frozen=True)
class LaplaceRows:
    """Independent Laplace noise.

    Attributes:
        keys: Keys of the rows' random streams, 32 bytes each.
        scales: Scale of each row.
        dim: Length of a row.
    """

    keys: Sequence[bytes]
    scales: Sequence[float]
    dim: int

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`."""
        keys, scales = self.keys[rows], self.scales[rows]
        if self.dim <= LONGEST and len(keys) > 1:
            return bounded_laplace_rows(keys, self.dim, scales)
        return _stacked(
            [Keystream(key).bounded_laplace(self.dim, scale) for key, scale in zip(keys, scales, strict=True)]
        )

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        return multiplied(real_laplace(self.keys[row], self.dim, column, extra), self.scales[row])


@dataclass(frozen=True)
class LaplaceSumRows:
    """Independent noise that is the sum of several Laplace draws.

    Attributes:
        keys: Keys of the rows' random streams, 32 bytes each.
        scales: Scale of each row's Laplace draws.
        dim: Length of a row.
        amount: How many draws are summed, at least 1, also fractional.
    """

    keys: Sequence[bytes]
    scales: Sequence[float]
    dim: int
    amount: float

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`."""
        scaled_keys = zip(self.keys[rows], self.scales[rows], strict=True)
        return _stacked([bounded_laplace_sums(key, self.dim, self.amount, scale) for key, scale in scaled_keys])

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        draw = real_laplace_sum(self.keys[row], self.dim, column, extra, self.amount)
        return multiplied(draw, self.scales[row])


@dataclass(frozen=True)
class SumOfNoise:
    """The sum of two kinds of noise on the same rows."""

    first: RealNoise
    second: RealNoise

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`."""
        draws, errors, largest = self.first.approximate(rows)
        others, other_errors, other_largest = self.second.approximate(rows)
        draws += others
        largest += other_largest
        return BoundedRows(draws, errors + other_errors + 1.01 * _UNIT * largest, largest)

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        first = self.first.interval(row, column, extra)
        second = self.second.interval(row, column, extra)
        if first is None or second is None:
            return None
        return sum_of_intervals(first, second)


def sum_of_intervals(first: Interval, second: Interval) -> Interval:
    """Returns the interval of a sum, exactly."""
    from mpmath.libmp import mpf_add

    return mpf_add(first[0], second[0]), mpf_add(first[1], second[1])


def _stacked(rows: Sequence[BoundedDraws]) -> BoundedRows:
    """Returns rows as one approximation."""
    errors = np.array([[row.error] for row in rows])
    largest = max(row.largest for row in rows)
    if len(rows) == 1:
        return BoundedRows(rows[0].draws[None], errors, largest)
    return BoundedRows(np.stack([row.draws for row in rows]), errors, largest)


def add_and_round(bounded: Array, noise: RealNoise, rows: slice, grids: Array, result: Array) -> int:
    """Adds noise to some rows, and rounds them to their grids.

    Args:
        bounded: These rows of the sums, `[k, dim]`.
        noise: The noise of all rows.
        rows: Which of them these are.
        grids: Grid of each of these rows, `[k, 1]`: powers of two.
        result: Where the rounded rows are written, `[k, dim]`.

    Returns:
        How many numbers needed multiple precision.

    Raises:
        PrivacyError: the functions of numpy or torch are less exact than the bounds need.
    """
    check_functions()
    sums, errors, largest_noise = noise.approximate(rows)
    undecided = list[tuple[int, int]]()
    for start in range(0, sums.shape[1], _IN_CACHE):
        columns = slice(start, start + _IN_CACHE)
        values = bounded[:, columns]
        uncertain = _round_sums(values, sums[:, columns], grids, errors, largest_noise, result[:, columns])
        undecided += [(row, start + column) for row, column in uncertain.tolist()]
    for row, column in undecided:
        value = float(bounded[row, column])
        # a sum that is no number stays none
        if math.isfinite(value):
            result[row, column] = _decided(value, noise, rows.start + row, column, float(grids[row, 0]))
    return len(undecided)


def _round_sums(
    values: Array, noise: Array, grids: Array, errors: Array, largest_noise: float, result: Array
) -> NDArray[np.int64]:
    """Rounds sums of values and noise to multiples of their grids.

    Args:
        values: One summand, `[k, columns]`.
        noise: The other one, which is overwritten.
        grids: Grid of each row, `[k, 1]`.
        errors: Bound on the error of each row's noise, `[k, 1]`.
        largest_noise: Bound on the absolute value of noise that is a number.
        result: Where the multiples are written, `[k, columns]`.

    Returns:
        Rows and columns of the numbers that may be wrong, `[j, 2]`.
    """
    # float64 numbers from 2^52 to 2^53 are whole: a sum with 3 * 2^51 is rounded to a whole number
    to_grid = 1.5 * 2.0**52 * grids
    largest = float(np.maximum(values.max(initial=0.0), -values.min(initial=0.0))) + largest_noise
    is_large = not largest <= _LARGEST_SUM * float(grids.min())
    whole = 0.0
    if is_large:
        # beside large values the sum with noise loses bits: only what is between grid points gets noise
        whole = np.rint(values / grids) * grids
        noise += values - whole
        largest = largest_noise + float(grids.max())
    else:
        noise += values
    np.add(noise, to_grid, out=result)
    result -= to_grid
    noise -= result
    distance = noise
    if is_large:
        result += whole

    # a little less than half a grid step: by the error of the noise, and by the rounding of the sum
    limits = 0.5 * grids - 1.0001 * (errors + _UNIT * largest)
    is_below = distance.max(1, initial=0.0, keepdims=True) <= limits
    is_above = distance.min(1, initial=0.0, keepdims=True) >= -limits
    if is_below.all() and is_above.all():
        return np.empty((0, 2), dtype=np.int64)
    return np.argwhere(~(np.abs(distance) <= limits))


def _decided(value: float, noise: RealNoise, row: int, column: int, grid: float) -> float:
    """Returns one rounded number, from as many bits of its noise as are needed."""
    from mpmath.libmp import from_float, mpf_add, mpf_floor, mpf_shift, to_int

    half = from_float(0.5)
    exponent = math.frexp(grid)[1] - 1
    for extra in range(_MOST_EXTRA):
        interval = noise.interval(row, column, extra)
        if interval is None:
            continue
        # sums of mpmath without a precision are exact
        steps = [mpf_shift(mpf_add(end, from_float(value)), -exponent) for end in interval]
        lower, upper = (cast(int, to_int(mpf_floor(mpf_add(end, half)))) for end in steps)
        if lower == upper:
            return float(lower) * grid
    raise PrivacyError(f"a noised number is not decided after {_MOST_EXTRA} words: the random stream is broken")


def multiplied(interval: Interval | None, factor: float) -> Interval | None:
    """Returns an interval times a number, exactly."""
    from mpmath.libmp import from_float, mpf_mul

    if interval is None:
        return None
    exact_factor = from_float(factor)
    ends = mpf_mul(interval[0], exact_factor), mpf_mul(interval[1], exact_factor)
    if factor < 0:
        return ends[1], ends[0]
    return ends
