"""A distribution function from one noised vector, by the square root of the running sum.

Let h be the shares of rows in B bins and A the matrix of running sums, so that `A h` is the distribution function F.
Its square root R (`R R = A`) is lower triangular and constant along diagonals, with first column r_0 = 1 and
`r_k = r_{k-1} (2k - 1) / (2k)`. The mean of the columns of R over rows, `R h`, is released with noise z of variance s^2
an entry, and `R (R h + z) = F + R z`. An entry of F then has noise of variance `s^2 (r_0^2 + ... + r_b^2)`, which grows
with log B. Noise on h itself would add up to `B s^2`.

Source: Henzinger, Upadhyay 2023 (continual counting by the square root of the running sum); here over bins.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
    """Returns the closest values that do not fall and stay in [0, 1]."""
    from sklearn.isotonic import isotonic_regression

    return np.clip(np.asarray(isotonic_regression(values), dtype=np.float64), 0.0, 1.0)
