"""Rounds sums of values and noise to a grid in floating point, and finds the sums that may be rounded wrongly.

`round_in_float32` is the first stage for long rows of independent normal noise on a coarse grid, `round_in_float64` the
first stage for all other noise, and the second stage for the few sums that float32 does not decide. Proofs are in
docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpriv.randomness.keystream import WIDE, normal_error, normals_of_words
from fedpriv.randomness.single_precision import DRAW_ERROR, LARGEST_RADIUS, UNIT, normals_in_float32

Array = NDArray[np.float64]
Positions = NDArray[np.int64]
LARGEST_SUM = 2.0**40
"""Grid steps: the rounding of larger sums would make too many numbers uncertain."""
_LARGEST_SINGLE_SUM = 2.0**15  # the same for float32
_TO_WHOLE = np.float32(1.5 * 2.0**23)  # float32 numbers from 2^23 to 2^24 are whole
_COARSE = 2.0**-10  # grids of at least this share of the scale
_LEAST_GRID = 2.0**-60  # so that float32 represents grids and scales
_EIGHT_TRUE = np.uint64(0x0101010101010101)
_UNIT = 2.0**-53


class Doubtful(NamedTuple):
    """Numbers that may be rounded wrongly, with the words of their noise.

    Attributes:
        rows: Row of each number, `[n]`.
        columns: Column of each number, `[n]`.
        radius_words: The word that determines the radius, `[n]`.
        angle_words: The word that determines the angle, `[n]`.
        is_sine: Whether the draw is a sine, `[n]`.
    """

    rows: Positions
    columns: Positions
    radius_words: Positions
    angle_words: Positions
    is_sine: NDArray[np.bool_]

    def selected(self, kept: Positions) -> Doubtful:
        """Returns some of the numbers."""
        return Doubtful(
            self.rows[kept], self.columns[kept], self.radius_words[kept], self.angle_words[kept], self.is_sine[kept]
        )


def round_in_float32(values: Array, words: NDArray[np.int64], scales: Array, grids: Array, result: Array) -> Doubtful:
    """Adds independent normal noise, and rounds to multiples of the grids.

    Args:
        values: One summand, `[k, columns]`.
        words: A block of words of each row's stream, `[k, columns]` or one more, which determine the noise.
        scales: Scale of each row's noise, `[k, 1]`.
        grids: Grid of each row, `[k, 1]`, for which `is_decided_by_float32`.
        result: Where the multiples are written, `[k, columns]`.

    Returns:
        The numbers that may be wrong.
    """
    columns = values.shape[1]
    draws, inside = normals_in_float32(words, scales.astype(np.float32))
    sums = draws[:, :columns]
    with np.errstate(over="ignore"):  # such values are large
        small = values.astype(np.float32)
    largest = _largest_size(small)
    is_large = not largest <= _LARGEST_SINGLE_SUM * float(grids.min())
    whole = np.zeros(0)
    if is_large:
        # next to large values the sum with noise loses bits: only the part between grid points gets noise
        whole = np.rint(values / grids) * grids
        small = (values - whole).astype(np.float32)
        largest = float(grids.max())
    sums += small
    to_grid = _TO_WHOLE * grids.astype(np.float32)
    rounded = np.add(sums, to_grid, out=small)
    rounded -= to_grid
    sums -= rounded
    np.copyto(result, rounded)
    if is_large:
        result += whole

    # half a step, without the error of the draw, the rounding of the value, and that of the sum
    errors = DRAW_ERROR * scales + UNIT * (2 * largest + 1.01 * LARGEST_RADIUS * scales)
    limits = ((0.5 - UNIT) * grids - 1.0001 * errors).astype(np.float32)
    is_certain = np.abs(sums, out=sums) <= limits
    half = words.shape[1] // 2
    is_certain[:, :half] &= inside
    is_certain[:, half:] &= inside[:, : columns - half]
    rows, places = np.divmod(_positions_of_false(is_certain), columns)
    is_sine = places >= half
    pairs = places - half * is_sine
    return Doubtful(rows, places, words[rows, pairs], words[rows, half + pairs], is_sine)


def is_decided_by_float32(scale: float, grid: float) -> bool:
    """True if float32 decides nearly all sums with noise of this scale."""
    return grid >= _COARSE * scale and _LEAST_GRID <= grid <= 1 / _LEAST_GRID


def _largest_size(numbers: NDArray[np.float32]) -> float:
    return float(np.maximum(numbers.max(initial=0.0), -numbers.min(initial=0.0)))


def _positions_of_false(mask: NDArray[np.bool_]) -> Positions:
    """Returns the positions of the few false entries of a mask, `[j]`."""
    flat = mask.reshape(-1)
    even = flat.size - flat.size % 8
    # eight entries at a time: most groups are true
    groups = np.flatnonzero(flat[:even].view(np.uint64) != _EIGHT_TRUE)
    candidates = (8 * groups[:, None] + np.arange(8)).reshape(-1)
    if even < flat.size:
        candidates = np.concatenate([candidates, np.arange(even, flat.size)])
    return candidates[~flat[candidates]]


def round_doubtful(values: Array, numbers: Doubtful, scales: Array, grids: Array, result: Array) -> Doubtful:
    """Computes numbers again in float64; returns those that may still be wrong.

    Args:
        values: The sums without noise, `[k, columns]`.
        numbers: The numbers.
        scales: Scale of each row's noise, `[k, 1]`.
        grids: Grid of each row, `[k, 1]`.
        result: Where the multiples of the grids are written, `[k, columns]`.
    """
    rows, columns = numbers.rows, numbers.columns
    draws, radii = normals_of_words(numbers.radius_words, numbers.angle_words, numbers.is_sine, WIDE)
    row_scales = scales[rows]
    errors = max(normal_error(radii[0]), normal_error(radii[1])) * row_scales
    largest = 1.01 * radii[1] * float(scales.max())
    noise, rounded = draws[:, None] * row_scales, np.empty((len(rows), 1))
    uncertain = round_in_float64(values[rows, columns][:, None], noise, grids[rows], errors, largest, rounded)
    result[rows, columns] = rounded[:, 0]
    return numbers.selected(uncertain[:, 0])


def round_in_float64(
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
    is_large = not largest <= LARGEST_SUM * float(grids.min())
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
