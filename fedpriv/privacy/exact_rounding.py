"""Rounds sums with noise to a grid as if the noise had been a real number.

The released value is ``grid * round((value + scale * Z) / grid)`` for a real normal or Laplace number Z, which is a
function of the output of an exact mechanism. So proofs about real numbers hold, and the low bits reveal nothing in
addition (Mironov 2012). float64 decides all but about one number in a million. The exceptions are sums so close to a
rounding boundary that the error could have moved them across, and draws that are NaN because their error is not
bounded. Exceptions that are sums of normal draws are then computed in extended precision. All other exceptions, and
sums that are still undecided, are computed in multiple precision, with more bits of the same random stream, until they
are decided. Proofs are in docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedpriv.distributed import threads
from fedpriv.errors import PrivacyError
from fedpriv.privacy.real_noise import RealNoise, compute_extended_sum
from fedpriv.randomness.extended_draws import UNIT as EXTENDED_UNIT
from fedpriv.randomness.real_draws import check_functions

Array = NDArray[np.float64]
GRID_BITS = 20
"""The grid is at least `2**-20` times the noise scale, and less than `2**-19` times the noise scale."""
_UNIT = 2.0**-53
_LARGEST_SUM = 2.0**40  # grid steps: the rounding of larger sums would make too many numbers uncertain
_IN_CACHE = 2**15  # numbers of a row that are rounded at once
_PIECE = 2**17  # numbers of a row that a thread takes
_MOST_EXTRA = 64  # words of further bits; undecided after all of them with probability 2^-4000


def add_and_round(bounded: Array, noise: RealNoise, rows: slice, grids: Array, result: Array) -> int:
    """Adds noise to some rows, and rounds them to their grids.

    Args:
        bounded: These rows of the sums, `[k, dim]`.
        noise: The noise of all rows.
        rows: Positions of these rows among all rows.
        grids: Grid of each of these rows, `[k, 1]`: powers of two.
        result: Where the rounded rows are written, `[k, dim]`.

    Returns:
        The number of entries that needed multiple precision.

    Raises:
        PrivacyError: If the functions of numpy or torch are less exact than the bounds need.
    """
    check_functions()
    sums, errors, largest_noise = noise.approximate(rows)

    def round_columns(_: int, piece: int) -> list[tuple[int, int]]:
        undecided = list[tuple[int, int]]()
        for start in range(piece, min(piece + _PIECE, sums.shape[1]), _IN_CACHE):
            columns = slice(start, start + _IN_CACHE)
            values = bounded[:, columns]
            uncertain = _round_sums(values, sums[:, columns], grids, errors, largest_noise, result[:, columns])
            undecided += [(row, start + column) for row, column in uncertain.tolist()]
        return undecided

    undecided = [
        place for places in threads.map_in_threads(round_columns, range(0, sums.shape[1], _PIECE)) for place in places
    ]
    for row, column in undecided:
        value, grid = float(bounded[row, column]), float(grids[row, 0])
        # a sum that is no number stays none
        if math.isfinite(value):
            result[row, column] = _decided(value, noise, rows.start + row, column, bounded.shape[1], grid)
    return len(undecided)


def _round_sums(
    values: Array, noise: Array, grids: Array, errors: Array, largest_noise: float, result: Array
) -> NDArray[np.int64]:
    """Rounds sums of values and noise to multiples of their grids.

    Args:
        values: One summand, `[k, columns]`.
        noise: The other summand, which is overwritten.
        grids: Grid of each row, `[k, 1]`.
        errors: Bound on the error of each row's noise, `[k, 1]`.
        largest_noise: Bound on the absolute value of noise that is not NaN.
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
        # next to large values the sum with noise loses bits: only the part between grid points gets noise
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


def _decided(value: float, noise: RealNoise, row: int, column: int, dim: int, grid: float) -> float:
    """Returns one rounded number, computed from as many bits of its noise as are needed."""
    weighted = noise.weighted_draws(row)
    if weighted is not None:
        extended = compute_extended_sum(weighted, dim, column)
        if extended is not None:
            rounded = _decided_by_extended(value, *extended, grid)
            if rounded is not None:
                return rounded
    return _decided_by_intervals(value, noise, row, column, grid)


def _decided_by_extended(value: float, noise: np.longdouble, error: float, grid: float) -> float | None:
    """Returns one rounded number, from its noise in extended precision and a bound on its error; None if undecided."""
    if not abs(value) <= _LARGEST_SUM * grid:
        return None
    # for such a small value, its multiple of the grid and the remainder are exact
    whole = np.rint(value / grid)
    steps = np.longdouble(value - whole * grid) / grid + noise / np.longdouble(grid)
    nearest = np.rint(steps)
    limit = np.longdouble(0.5) - 1.01 * (error / grid + 2 * EXTENDED_UNIT * (abs(float(steps)) + 1))
    if not abs(steps - nearest) <= limit:
        return None
    return float(int(whole) + int(nearest)) * grid


def _decided_by_intervals(value: float, noise: RealNoise, row: int, column: int, grid: float) -> float:
    """Returns one rounded number, from intervals in multiple precision that shrink until it is decided."""
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
    raise PrivacyError(
        f"rounding a noised number needed more than {_MOST_EXTRA} random words: the random stream is broken"
    )
