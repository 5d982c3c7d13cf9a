"""Computes normal draws in extended precision, for the few numbers that float64 does not decide and that are sums of
many draws.

On most processors of the x86 family, and on Linux for other processors, numpy's long double has at least 64 bits. The
error of a draw is then two thousand times smaller than in float64, and the computation is ten times faster than in
multiple precision. If the long double has fewer bits, or if its functions differ from mpmath's, this module computes
nothing, and all these numbers are computed in multiple precision. Released numbers are the same in both cases. The
bound is proved in docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpriv.randomness.keystream import WORST_UNITS
from fedpriv.randomness.real_draws import leading_bits, locate_normal_words

Extended = NDArray[np.longdouble]
UNIT = 2.0**-64
"""Largest relative rounding error of extended precision."""
_LEAST_BITS = 63  # after the leading one
_LEAST_RADIUS = 2.0**-20
_LEAST_WORD = 2.0**20
_FEW_LEADING_BITS = 2.0**50
_PI = "3.14159265358979323846264338327950288419716939937511"


class ExtendedDraws(NamedTuple):
    """Draws in extended precision.

    Attributes:
        draws: The draws, `[n]`.
        errors: Bound on the absolute error of each draw, `[n]`; infinite where no bound is known.
    """

    draws: Extended
    errors: NDArray[np.float64]


def extended_normals(keys: Sequence[bytes], size: int, index: int) -> ExtendedDraws | None:
    """Returns draw number `index` of `size` standard normal draws from each of several streams; None if no error bound
    holds on this machine.

    Args:
        keys: Keys of the streams.
        size: Number of draws of each stream, as for `Keystream.standard_normal`.
        index: Number of the draw, from 0.
    """
    if not is_available():
        return None
    words = locate_normal_words(size, index)
    radius_words = np.array([leading_bits(key, words.radius, 0).number | 1 for key in keys], dtype=np.int64)
    angle_words = np.array([leading_bits(key, words.angle, 0).number for key in keys], dtype=np.int64)
    # whole numbers of 63 bits and a sign are exact
    whole = np.abs(radius_words.astype(np.longdouble))
    divisors = whole.astype(np.float64)
    # in the tails a word has few leading bits: more of them are taken
    for position in np.flatnonzero(divisors < _FEW_LEADING_BITS).tolist():
        whole[position] = _with_further_word(keys[position], words.radius)
        divisors[position] = float(whole[position]) * 2.0**64
    radius = np.sqrt(-2 * np.log(whole * np.longdouble(2.0**-63)))
    angle = angle_words.astype(np.longdouble) * np.longdouble(2.0**-63) * np.longdouble(_PI)
    if words.is_cosine:
        draws = radius * np.cos(angle)
    else:
        draws = radius * np.sin(angle)

    sizes = radius.astype(np.float64)
    has_bound = (sizes > _LEAST_RADIUS) & (divisors > _LEAST_WORD)
    safe_sizes = np.where(has_bound, sizes, 1.0)
    # the logarithm and its root; the angle, its cosine and the product; the bits that the word leaves open
    units = WORST_UNITS / 2 + 1 + WORST_UNITS + 13 + 1
    errors = 1.01 * (units * UNIT * safe_sizes + (1.01 / divisors + 1.01 * UNIT) / safe_sizes)
    return ExtendedDraws(draws, np.where(has_bound, errors, np.inf))


def _with_further_word(key: bytes, word: int) -> np.longdouble:
    """Returns the uniform number of a radius word and the next 64 bits, divided by 2^64 and rounded once."""
    leading = leading_bits(key, word, 1)
    first = leading.number >> 64
    # the lowest bit of the word is not used: the word represents an interval of width two, from its even number on
    number = abs(((first & ~1) << 64) + 2 * (leading.number & (2**64 - 1)) + 1)
    upper, lower = divmod(number, 2**64)
    return np.longdouble(upper) + np.longdouble(lower) * np.longdouble(2.0**-64)


@cache
def is_available() -> bool:
    """True if long doubles have 64 bits on this machine, and the errors of their functions are at most half of what the
    bound allows.
    """
    from mpmath import mp, mpf, workprec

    if np.finfo(np.longdouble).nmant < _LEAST_BITS:
        return False
    points = np.concatenate([np.geomspace(2.0**-63, 1.0, 150), 1 - np.geomspace(2.0**-52, 0.5, 50)])
    angles = np.linspace(-np.pi, np.pi, 200)
    with workprec(128):
        logs = _units(np.log, mp.log, points)
        exact_logs = np.array([abs(float(mp.log(mpf(float(point))))) for point in points])
        differences = [logs / np.where(exact_logs == 0, 1.0, exact_logs)]
        differences += [_units(np.cos, mp.cos, angles), _units(np.sin, mp.sin, angles)]
    return all(bool((difference <= WORST_UNITS / 2).all()) for difference in differences)


def _units(function: Any, reference: Any, points: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ANN401
    """Returns the difference between a function and mpmath's, in units of the last bit."""
    from mpmath import mpf

    values = function(points.astype(np.longdouble))
    differences = list[float]()
    for value, point in zip(values, points.tolist(), strict=True):
        upper = float(value)
        exact = reference(mpf(point)) - mpf(upper) - mpf(float(value - np.longdouble(upper)))
        differences.append(abs(float(exact)) / UNIT)
    return np.array(differences)
