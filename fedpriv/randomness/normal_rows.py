"""Normal draws that all have an error bound, for noise that is used again in later rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpriv.errors import PrivacyError
from fedpriv.randomness.extended_draws import extended_normals
from fedpriv.randomness.real_draws import real_normal
from fedpriv.randomness.short_rows import BoundedRows

_UNIT = 2.0**-53
_IN_CACHE = 2**15  # numbers of a row that are processed together
_FURTHER_WORDS = range(2, 10)  # with two of them the error of a draw is at most its rounding


def fill_undecided_rows(bounded: BoundedRows, keys: Sequence[bytes]) -> BoundedRows:
    """Returns draws of scale 1, in which each NaN is replaced by the rounded real draw, and a bound on the errors of
    all draws.

    Args:
        bounded: Rows of draws. They are overwritten.
        keys: Key of each row's stream; a row contains all draws of its stream.
    """
    draws, errors, largest = bounded
    for start in range(0, draws.shape[1], _IN_CACHE):
        columns = draws[:, start : start + _IN_CACHE]
        if not np.isnan(columns.sum()):
            continue
        for row, column in np.argwhere(np.isnan(columns)).tolist():
            nearest = _nearest(keys[row], draws.shape[1], start + column, float(errors[row, 0]))
            columns[row, column] = nearest
            largest = max(largest, 1.01 * abs(nearest))
    # the replaced value is rounded to float64, at worst towards zero
    return BoundedRows(draws, np.maximum(errors, errors / 4 + 2.1 * _UNIT * largest), largest)


def _nearest(key: bytes, size: int, index: int, error: float) -> float:
    """Returns a draw in float64; its error is at most `error`, or the rounding error if that is larger."""
    from mpmath.libmp import to_float

    extended = extended_normals([key], size, index)
    if extended is not None and extended.errors[0] <= error / 4:
        return float(extended.draws[0])
    for extra in _FURTHER_WORDS:
        interval = real_normal(key, size, index, extra)
        if interval is not None:
            return to_float(interval[0])
    raise PrivacyError("a draw of normal noise used up all its random words: the random stream is broken")
