"""Computes noise that is correlated between rounds as real numbers: rows of C^-1 Z for a banded or a buffered matrix C.

The row of round t is ``w_t = z_t - c_1 w_(t-1) - c_2 w_(t-2) - ...``, that is ``sum_s h_(t-s) z_s``, where h is the
first column of C^-1 and z_s are the real normal numbers that the random streams of round s determine. float64 computes
the recursion (`NoiseHistory`); undecided numbers are computed from the sum, in multiple precision. The bound on the
error of float64 is in docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.inverse_column import PRECISION, InverseColumn, bound_memory_length
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.real_noise import (
    GaussianRows,
    RealNoise,
    SumOfNoise,
    WeightedDraws,
    add_intervals,
    multiply_interval,
)
from fedpriv.randomness.extended_draws import Extended
from fedpriv.randomness.keystream import NARROW
from fedpriv.randomness.normal_rows import fill_undecided_rows
from fedpriv.randomness.real_draws import Interval, real_normal
from fedpriv.randomness.short_rows import BoundedRows
from fedpriv.randomness.streams import Randomness

Array = NDArray[np.float64]
_UNIT = 2.0**-53
_LIMITS = NARROW
PairNoise = Callable[[int, Sequence[int]], NormalCombinations | None]
"""Returns the noise of pairs in the rows of some clients in a round, divided by the standard deviation of a client's
individual noise; None if there is no noise of pairs.
"""


@dataclass(frozen=True)
class UnitNoise:
    """The noise of all rounds before it is correlated (unit noise), divided by the standard deviation of a client's
    individual noise.

    Attributes:
        randomness: The run's random streams.
        index: Number of the release within its round.
        clients: Index of each row's client in the run.
        dim: Length of a row.
        pair_noise: Noise of pairs in these rows; None if no pairs share noise.
    """

    randomness: Randomness
    index: int
    clients: Sequence[int]
    dim: int
    pair_noise: PairNoise | None = None

    def noise_in_round(self, round_index: int) -> RealNoise:
        """Returns the noise of all rows in a round, without NaN."""
        keys = self.randomness.key_bytes("noise", round_index, self.index, self.clients)
        own = CompleteRows(keys, self.dim)
        if self.pair_noise is None:
            return own
        shared = self.pair_noise(round_index, self.clients)
        if shared is None:
            return own
        _ = shared.rows  # drawn here, and not by several threads at once
        return SumOfNoise(own, shared)

    def interval(self, round_index: int, row: int, column: int, extra: int) -> Interval | None:
        """Returns an interval that contains one number of a round."""
        draw = real_normal(self._key(round_index, row), self.dim, column, extra)
        shared = self._pairs_of(round_index, row)
        if shared is None or draw is None:
            return draw
        of_pairs = shared.interval(0, column, extra)
        if of_pairs is None:
            return None
        return add_intervals(draw, of_pairs)

    def weighted_draws(self, weights: Extended, row: int, first: int) -> WeightedDraws:
        """Returns a row's sum over the rounds from `first` on with these weights, `[rounds]`."""
        keys = [self._key(round_index, row) for round_index in range(first, first + len(weights))]
        if self.pair_noise is None:
            return WeightedDraws(keys, weights)
        all_weights = [weights]
        for round_index, weight in enumerate(weights, start=first):
            shared = self._pairs_of(round_index, row)
            if shared is None:
                continue
            draws = shared.weighted_draws(0)
            keys += draws.keys
            all_weights.append(weight * draws.weights)
        return WeightedDraws(keys, np.concatenate(all_weights))

    def _key(self, round_index: int, row: int) -> bytes:
        return self.randomness.key("noise", round_index, self.index, self.clients[row])

    def _pairs_of(self, round_index: int, row: int) -> NormalCombinations | None:
        if self.pair_noise is None:
            return None
        return self.pair_noise(round_index, [self.clients[row]])


@dataclass(frozen=True)
class CompleteRows:
    """Independent standard normal noise without NaN, because later rounds need all draws."""

    keys: Sequence[bytes]
    dim: int

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`."""
        keys = self.keys[rows]
        bounded = GaussianRows(keys, [1.0] * len(keys), self.dim, _LIMITS).approximate(slice(0, len(keys)))
        return fill_undecided_rows(bounded, keys)

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        return real_normal(self.keys[row], self.dim, column, extra)

    def weighted_draws(self, row: int) -> WeightedDraws:
        """See `RealNoise`."""
        return WeightedDraws([self.keys[row]], np.ones(1, dtype=np.longdouble))


@dataclass(frozen=True)
class CorrelatedRows:
    """The noise of one round, and of those before it.

    Attributes:
        history: Computes the filtered noise of each round once, in the order of rounds.
        column: The first column of C^-1.
        unit: The noise of all rounds before it is filtered.
        round: The round.
        scales: Standard deviation of each row's individual noise.
    """

    history: NoiseHistory
    column: InverseColumn
    unit: UnitNoise
    round: int
    scales: Sequence[float]

    @cached_property
    def new(self) -> RealNoise:
        """The noise of this round before it is filtered."""
        return self.unit.noise_in_round(self.round)

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`. This method filters the given rows, so it must be called exactly once for each row."""
        draws, errors, largest = self.new.approximate(rows)
        error, largest = self.history.widen(rows, float(errors.max()), largest)
        filtered = self.history.filtered(torch.from_numpy(draws), rows, self.round)

        past_rounds = self.round - self.history.first
        factor, growth = self.history.factor, self.column.absolute_sum(past_rounds + 1)
        if factor.scales:
            buffers = self.history.largest_in_buffers(rows, filtered, self.round)
            error, size = bound_buffer_error(factor, past_rounds, growth, error, largest, buffers)
        else:
            largest_filtered = self.history.largest_filtered(rows, filtered)
            error, size = bound_band_error(factor.band, growth, error, largest, largest_filtered)
        scales = np.array(self.scales[rows], dtype=np.float64)[:, None]
        scaled_errors = scales * (error + 1.01 * _UNIT * size)  # the product with the scale is rounded
        noise = filtered.numpy()  # the history has a copy of it
        noise *= scales
        return BoundedRows(noise, scaled_errors, 1.01 * size * float(scales.max()))

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        from mpmath.libmp import fzero
        from mpmath.libmp.libmpi import mpi_add, mpi_mul

        total: Interval = (fzero, fzero)
        for earlier in range(self.history.first, self.round + 1):
            draw = self.unit.interval(earlier, row, column, extra)
            if draw is None:
                return None
            term = mpi_mul(self.column.number(self.round - earlier), draw, PRECISION)
            total = mpi_add(total, term, PRECISION)
        return multiply_interval(total, self.scales[row])

    def weighted_draws(self, row: int) -> WeightedDraws:
        """See `RealNoise`."""
        first = self.history.first
        weights = self.column.extended(self.round + 1 - first)[::-1] * np.longdouble(self.scales[row])
        return self.unit.weighted_draws(weights, row, first)


@lru_cache(maxsize=8)
def _absolute(band: tuple[float, ...]) -> Array:
    return np.abs(np.array(band))


def bound_band_error(
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
    products = _absolute(tuple(band)) * filtered
    # a partial sum is at most all that was added to the unit noise, and all that is still to come to the filtered one
    sums = products.cumsum()
    total = float(sums[-1]) if len(band) else 0.0
    partial_sums = np.minimum(largest + sums, (filtered + total) - sums)
    rounding = 1.01 * _UNIT * (total + float(partial_sums.sum()))
    return 1.01 * growth * (error + rounding), 1.01 * filtered


def bound_buffer_error(
    factor: Factor, rounds: int, growth: float, error: float, largest: float, buffers: Sequence[float]
) -> tuple[float, float]:
    """Returns bounds on the error of the filtered noise of float64, and on its absolute value.

    Args:
        factor: The matrix C.
        rounds: Number of rounds before this one.
        growth: Sum of the absolute values of h up to this round.
        error: Bound on the error of all unit noise so far.
        largest: Bound on the absolute value of all unit noise so far.
        buffers: The largest absolute value of each buffer in float64 so far.
    """
    weight = sum(scale * buffer for scale, buffer in zip(factor.scales, buffers, strict=True))
    # a product with each buffer, and a difference after each
    rounding = 1.01 * _UNIT * (weight + len(buffers) * (largest + weight))
    # a product and a sum in each buffer and round, which stay in it
    for scale, decay, buffer in zip(factor.scales, factor.decays, buffers, strict=True):
        rounding += scale * bound_memory_length(decay, rounds) * 2.03 * _UNIT * buffer
    return 1.01 * growth * (error + rounding), 1.01 * (largest + weight)
