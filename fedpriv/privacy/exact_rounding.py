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
from fedpriv.privacy.real_noise import GaussianRows, RealNoise, compute_extended_sum
from fedpriv.privacy.rounding_stages import (
    LARGEST_SUM,
    Doubtful,
    is_decided_by_float32,
    round_doubtful,
    round_in_float32,
    round_in_float64,
)
from fedpriv.randomness.extended_draws import UNIT as EXTENDED_UNIT
from fedpriv.randomness.keystream import BLOCK, WIDE, Keystream
from fedpriv.randomness.real_draws import check_functions
from fedpriv.randomness.short_rows import words_of_rows
from fedpriv.randomness.single_precision import check_single_functions

Array = NDArray[np.float64]
FINE_GRID_BITS, COARSE_GRID_BITS = 20, 8
"""The grid is at least `2**-bits` times the noise scale, and less than twice that. Independent normal noise has the
coarse grid, which adds at most 5e-6 of its variance; noise that partly cancels in a sum has the fine one.
"""
_IN_CACHE = 2**15  # numbers of a row that are rounded at once
_PIECE = 2**17  # numbers of a row that a thread takes
_PIECE_IN_FLOAT32 = 4 * BLOCK  # the same where float32 decides
_FEW_NUMBERS = 24_000  # numbers for which the steps of a second stage take longer than float32 saves
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
    if type(noise) is GaussianRows and bounded.size >= _FEW_NUMBERS and _may_use_float32(noise, rows, grids):
        undecided = _round_normal_rows(bounded, noise, rows, grids, result)
    else:
        undecided = _round_approximation(bounded, noise, rows, grids, result)
    for row, column in undecided:
        value, grid = float(bounded[row, column]), float(grids[row, 0])
        # a sum that is no number stays none
        if math.isfinite(value):
            result[row, column] = _decided(value, noise, rows.start + row, column, bounded.shape[1], grid)
    return len(undecided)


def _may_use_float32(noise: GaussianRows, rows: slice, grids: Array) -> bool:
    """True if float32 decides nearly all sums of these rows."""
    scaled_grids = zip(noise.scales[rows], grids[:, 0].tolist(), strict=True)
    return noise.limits == WIDE and all(is_decided_by_float32(scale, grid) for scale, grid in scaled_grids)


def _round_normal_rows(
    bounded: Array, noise: GaussianRows, rows: slice, grids: Array, result: Array
) -> list[tuple[int, int]]:
    """Adds independent normal noise and rounds, in float32 and where it does not decide in float64. Returns the rows
    and columns of undecided numbers.
    """
    check_single_functions()
    keys, scales = noise.keys[rows], np.array(noise.scales[rows])[:, None]
    dim = bounded.shape[1]

    if dim <= BLOCK:
        doubtful = round_in_float32(bounded, words_of_rows(keys, dim + dim % 2), scales, grids, result)
    else:

        def round_piece(_: int, piece: tuple[int, int, int]) -> Doubtful:
            row, start, stop = piece
            size = stop - start
            words = Keystream(keys[row], start).words(size + size % 2)
            shape = (-1, min(size, BLOCK))  # a block of words in each line
            values, target = (rows[row, start:stop].reshape(shape) for rows in (bounded, result))
            numbers = round_in_float32(
                values, words.reshape(len(values), -1), scales[row : row + 1], grids[row : row + 1], target
            )
            columns = start + BLOCK * numbers.rows + numbers.columns
            return numbers._replace(rows=np.full_like(columns, row), columns=columns)

        pieces = [(row, start, stop) for row in range(len(keys)) for start, stop in _pieces_of_blocks(dim)]
        parts = zip(*threads.map_in_threads(round_piece, pieces), strict=True)
        doubtful = Doubtful(*(np.concatenate(part) for part in parts))
    undecided = round_doubtful(bounded, doubtful, scales, grids, result)
    return list(zip(undecided.rows.tolist(), undecided.columns.tolist(), strict=True))


def _pieces_of_blocks(dim: int) -> list[tuple[int, int]]:
    """Returns the beginnings and ends of pieces of a row: some blocks of words each, and the rest alone."""
    whole = dim // BLOCK * BLOCK
    pieces = [(start, min(start + _PIECE_IN_FLOAT32, whole)) for start in range(0, whole, _PIECE_IN_FLOAT32)]
    return [*pieces, (whole, dim)] if whole < dim else pieces


def _round_approximation(
    bounded: Array, noise: RealNoise, rows: slice, grids: Array, result: Array
) -> list[tuple[int, int]]:
    """Adds noise of any kind and rounds in float64. Returns the rows and columns of undecided numbers."""
    sums, errors, largest_noise = noise.approximate(rows)

    def round_columns(_: int, piece: int) -> list[tuple[int, int]]:
        undecided = list[tuple[int, int]]()
        for start in range(piece, min(piece + _PIECE, sums.shape[1]), _IN_CACHE):
            columns = slice(start, start + _IN_CACHE)
            values = bounded[:, columns]
            uncertain = round_in_float64(values, sums[:, columns], grids, errors, largest_noise, result[:, columns])
            undecided += [(row, start + column) for row, column in uncertain.tolist()]
        return undecided

    pieces = threads.map_in_threads(round_columns, range(0, sums.shape[1], _PIECE))
    return [place for places in pieces for place in places]


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
    if not abs(value) <= LARGEST_SUM * grid:
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
