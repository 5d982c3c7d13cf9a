"""Represents the noise of rows as real numbers, by approximations in float64 with bounds on their errors, and by
intervals.

Every class here represents real numbers that random streams determine; `exact_rounding` rounds sums with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedpriv.distributed import threads
from fedpriv.randomness.extended_draws import UNIT as EXTENDED_UNIT
from fedpriv.randomness.extended_draws import Extended, extended_normals
from fedpriv.randomness.gamma_draws import bounded_laplace_sums, real_laplace_sum
from fedpriv.randomness.keystream import BLOCK, WIDE, BoundedDraws, Keystream, RadiusLimits
from fedpriv.randomness.real_draws import Interval, real_laplace, real_normal
from fedpriv.randomness.short_rows import LONGEST, BoundedRows, bounded_laplace_rows, bounded_normal_rows

_UNIT = 2.0**-53
_PIECE = 2 * BLOCK  # numbers of a row that a thread draws at once: whole blocks of the stream, so the same bits


class WeightedDraws(NamedTuple):
    """A row that is a weighted sum of standard normal draws.

    Attributes:
        keys: Keys of the draws' streams.
        weights: The weights in extended precision, `[n]`. The error of each weight is at most four units, or 2^-600.
    """

    keys: Sequence[bytes]
    weights: Extended


class RealNoise(Protocol):
    """The noise of a release as real numbers, and its approximation in float64."""

    def approximate(self, rows: slice) -> BoundedRows:
        """Returns an approximation of some rows."""
        ...

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """Returns an interval that contains one real number of the noise. The interval becomes smaller with each word
        of further bits.
        """
        ...

    def weighted_draws(self, row: int) -> WeightedDraws | None:
        """Returns the normal draws of which a row is a weighted sum; None if it is not such a sum."""
        ...


@dataclass(frozen=True)
class GaussianRows:
    """Independent normal noise.

    Attributes:
        keys: Keys of the rows' random streams, 32 bytes each.
        scales: Standard deviation of each row.
        dim: Length of a row.
        limits: Limits between which draws have an error bound; other draws are NaN.
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
        return _stacked(
            [_normal_row(key, self.dim, scale, self.limits) for key, scale in zip(keys, scales, strict=True)]
        )

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        return multiply_interval(real_normal(self.keys[row], self.dim, column, extra), self.scales[row])

    def weighted_draws(self, row: int) -> WeightedDraws:
        """See `RealNoise`."""
        return WeightedDraws([self.keys[row]], np.array([self.scales[row]], dtype=np.longdouble))


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
        return multiply_interval(real_laplace(self.keys[row], self.dim, column, extra), self.scales[row])

    def weighted_draws(self, row: int) -> None:
        """See `RealNoise`."""
        return


@dataclass(frozen=True)
class LaplaceSumRows:
    """Independent noise that is the sum of several Laplace draws.

    Attributes:
        keys: Keys of the rows' random streams, 32 bytes each.
        scales: Scale of each row's Laplace draws.
        dim: Length of a row.
        amount: Number of draws that are summed, at least 1; it may be fractional.
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
        return multiply_interval(draw, self.scales[row])

    def weighted_draws(self, row: int) -> None:
        """See `RealNoise`."""
        return


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
        return add_intervals(first, second)

    def weighted_draws(self, row: int) -> WeightedDraws | None:
        """See `RealNoise`."""
        first, second = self.first.weighted_draws(row), self.second.weighted_draws(row)
        if first is None or second is None:
            return None
        return WeightedDraws([*first.keys, *second.keys], np.concatenate([first.weights, second.weights]))


def add_intervals(first: Interval, second: Interval) -> Interval:
    """Returns the interval of a sum, exactly."""
    from mpmath.libmp import mpf_add

    return mpf_add(first[0], second[0]), mpf_add(first[1], second[1])


def _normal_row(key: bytes, size: int, scale: float, limits: RadiusLimits) -> BoundedDraws:
    """Returns `Keystream(key).bounded_normal(size, scale, limits)`; several threads draw pieces of a long row."""
    if size <= _PIECE:
        return Keystream(key).bounded_normal(size, scale, limits)
    draws = np.empty(size)

    def draw(_: int, start: int) -> tuple[float, float]:
        piece = Keystream(key, start).bounded_normal(min(_PIECE, size - start), scale, limits)
        draws[start : start + _PIECE] = piece.draws
        return piece.error, piece.largest

    bounds = threads.map_in_threads(draw, range(0, size, _PIECE))
    return BoundedDraws(draws, max(error for error, _ in bounds), max(largest for _, largest in bounds))


def _stacked(rows: Sequence[BoundedDraws]) -> BoundedRows:
    """Returns rows as one approximation."""
    if len(rows) == 1:
        return BoundedRows(rows[0].draws[None], np.array([[rows[0].error]]), rows[0].largest)
    errors = np.array([[row.error] for row in rows])
    largest = max(row.largest for row in rows)
    return BoundedRows(np.stack([row.draws for row in rows]), errors, largest)


def compute_extended_sum(weighted: WeightedDraws, size: int, column: int) -> tuple[np.longdouble, float] | None:
    """Returns one number of a row in extended precision, and a bound on its error; None if no bound is known.

    Args:
        weighted: The row.
        size: Length of the row.
        column: The number in the row.
    """
    extended = extended_normals(weighted.keys, size, column)
    if extended is None:
        return None
    sizes = np.abs(weighted.weights).astype(np.float64)
    products = weighted.weights * extended.draws
    # products and n - 1 sums are rounded, and weights are wrong by four units
    roundings = (len(sizes) + 5) * EXTENDED_UNIT * float(np.abs(products).sum())
    draws = float(np.abs(extended.draws).sum())
    error = 1.01 * (float((sizes * extended.errors).sum()) + roundings + 2.0**-600 * draws)
    return products.sum(), error


def multiply_interval(interval: Interval | None, factor: float) -> Interval | None:
    """Returns an interval times a number, exactly."""
    from mpmath.libmp import from_float, mpf_mul

    if interval is None:
        return None
    exact_factor = from_float(factor)
    ends = mpf_mul(interval[0], exact_factor), mpf_mul(interval[1], exact_factor)
    if factor < 0:
        return ends[1], ends[0]
    return ends
