"""A distribution function from one noised vector, by the square root of the running sum.

Let h be the shares of rows in B bins and A the matrix of running sums, so that `A h` is the distribution function F.
Its square root R (`R R = A`) is lower triangular and constant along diagonals, with first column r_0 = 1 and
`r_k = r_{k-1} (2k - 1) / (2k)`. The mean of the columns of R over rows, `R h`, is released with noise z of variance s^2
an entry, and `R (R h + z) = F + R z`. An entry of F then has noise of variance `s^2 (r_0^2 + ... + r_b^2)`, which grows
with log B. Noise on h itself would add up to `B s^2`.

Source: Henzinger, Upadhyay 2023 (continual counting by the square root of the running sum); here over bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedpriv.statistics.estimates import Z95, Estimate

Floats = NDArray[np.float64]
_STEPS = 400  # of the search for a centre


@lru_cache(maxsize=8)
def root(bins: int) -> Floats:
    """Returns R, `[bins, bins]`."""
    k = np.arange(1, bins)
    column = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    positions = np.arange(bins)[:, None] - np.arange(bins)[None, :]
    return np.where(positions >= 0, column[np.abs(positions)], 0.0)


@lru_cache(maxsize=8)
def centre(bins: int) -> Floats:
    """Returns about the centre of the smallest ball around the columns of R, `[bins]` (Badoiu, Clarkson 2003)."""
    columns = root(bins).T
    point = columns.mean(0)
    for step in range(1, _STEPS + 1):
        farthest = columns[int(np.square(columns - point).sum(1).argmax())]
        point = point + (farthest - point) / (step + 1)
    return point


@lru_cache(maxsize=8)
def radius(bins: int) -> float:
    """Returns the largest distance of a column of R from the centre."""
    return float(np.sqrt(np.square(root(bins).T - centre(bins)).sum(1).max()))


def isotonic(values: Floats) -> Floats:
    """Returns the closest values that are in [0, 1] and do not decrease."""
    from sklearn.isotonic import isotonic_regression

    return np.clip(np.asarray(isotonic_regression(values), dtype=np.float64), 0.0, 1.0)


@dataclass(frozen=True)
class Distribution:
    """A noised distribution function over B bins, from which the mean and quantiles are computed.

    Attributes:
        edges: Edges of the bins, `[B + 1]`.
        raw: F at the right edge of each bin, as released, `[B]`; 1 at the last.
        smooth: The closest function that does not decrease, with F = 0 at the first edge, `[B + 1]`.
        errors: Standard deviation of the noise in `raw`, `[B]`.
        sum_error: Standard deviation of the noise in the sum of `raw` without its last entry.
    """

    edges: Floats
    raw: Floats
    smooth: Floats
    errors: Floats
    sum_error: float

    @classmethod
    def of(
        cls, released: Floats, present: float, deviation: float, missing_deviation: float, bounds: tuple[float, float]
    ) -> Distribution:
        """Returns the distribution of the values that are not missing.

        Args:
            released: Noised mean over rows of the columns of R minus their centre, zeros for missing values, `[B]`.
            present: Noised share of rows that are not missing.
            deviation: Standard deviation of the noise in each entry of `released`.
            missing_deviation: Standard deviation of the noise in `present`.
            bounds: The first and the last edge.
        """
        bins = len(released)
        matrix, middle = root(bins), centre(bins)
        raw = matrix @ (released + present * middle) / present
        # a change of `present` by its noise changes raw by about this much
        of_missing = (raw - matrix @ middle) / present * missing_deviation
        errors = np.hypot(np.linalg.norm(matrix, axis=1) * deviation / present, of_missing)
        raw[-1], errors[-1] = 1.0, 0.0  # every value lies below the last edge
        smooth = np.concatenate([[0.0], isotonic(raw)])
        smooth[-1] = 1.0
        of_entries = float(np.linalg.norm(matrix[:-1].sum(0))) * deviation / present
        sum_error = math.hypot(of_entries, float(of_missing[:-1].sum()))
        return cls(np.linspace(*bounds, bins + 1), raw, smooth, errors, sum_error)

    @property
    def _middles(self) -> Floats:
        return (self.edges[:-1] + self.edges[1:]) / 2

    def mean(self) -> Estimate:
        """Returns the mean, with each value in the middle of its bin. It is linear in F, so its noise is normal."""
        width = float(self.edges[1] - self.edges[0])
        value = float(self._middles[-1] - width * self.raw[:-1].sum())
        return Estimate.normal(value, width * self.sum_error, width / 2).clamped(self.edges[0], self.edges[-1])

    def sd(self) -> float:
        """Returns the standard deviation of the smooth distribution."""
        shares = np.diff(self.smooth)
        middle = float(shares @ self._middles)
        return math.sqrt(float(shares @ np.square(self._middles - middle)))

    def quantile(self, q: float) -> Estimate:
        """Returns a quantile; its interval contains all bins in which F may pass q, given the noise."""
        position = int(np.searchsorted(self.smooth, q))  # the first edge at which F reaches q
        left, right = self.edges[position - 1], self.edges[position]
        below, above = self.smooth[position - 1], self.smooth[position]
        value = float(left + (q - below) / (above - below) * (right - left))
        first = int(np.argmax(self.raw + Z95 * self.errors >= q))  # in the bins before it, F is below q
        last = 0
        (short,) = np.nonzero(self.raw - Z95 * self.errors < q)  # at their right edges, F may still be below q
        if len(short):
            last = min(int(short[-1]) + 1, len(self.raw) - 1)
        low, high = float(self.edges[first]), float(self.edges[last + 1])
        return Estimate(min(max(value, low), high), low, high)
