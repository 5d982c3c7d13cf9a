"""Computes differences of two Gamma draws as real numbers. They are sums of several Laplace draws; the number of draws
(the Gamma shape) may be fractional.

Gamma(a) is drawn for a >= 1 by the acceptance-rejection method of Marsaglia and Tsang (2000). With d = a - 1/3 and c =
1 / sqrt(9 d), candidates ``x`` normal and ``u`` uniform are drawn until ``1 + c x > 0`` and

    ln u < x^2 / 2 + d (1 - v + ln v),    v = (1 + c x)^3,

and the draw is d v. With real numbers, the draw has exactly the distribution Gamma(a). Candidate k of a draw has
separate words of the stream, independent of other draws, so that the stream determines the real draw. float64 decides
if a candidate is accepted where both sides of the inequality differ by more than their errors; otherwise the draw is
NaN. Bounds are proved in docs/design/0012-exact-noise.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.errors import PrivacyError
from fedpriv.randomness.keystream import (
    WORST_UNITS,
    BoundedDraws,
    Floats,
    Keystream,
    RadiusLimits,
    bounded_radii,
    draw_odd_multiples,
    exponential_error,
    limit_logarithms,
    normal_error,
)
from fedpriv.randomness.real_draws import PRECISION, Interval, box_muller, leading_bits, log_of_uniform, with_slack

_UNIT = 2.0**-53
_LIMITS = RadiusLimits(
    2.0**-12, 5.5
)  # outside are three draws in ten million; the bound on all others is a third of the bound of `WIDE`
_BLOCK = 4096  # draws at a time, which stay in the cache
_LEAST_ROOT = 2.0**-20  # of v: below it, its logarithm has no bound
_MOST_CANDIDATES = 100  # of a draw; all are rejected with probability 2^-430


class _Words(NamedTuple):
    """Positions of the words of a candidate. They are stored kind by kind, for all draws of a block.

    Attributes:
        start: Position of the block's first word among the words of one candidate of all draws.
        length: Number of draws of the block.
        stride: Number of words of a candidate of all draws.
    """

    start: int
    length: int
    stride: int

    @classmethod
    def in_block(cls, size: int, first: int) -> _Words:
        """Returns the positions of the block that begins with draw `first` of `size`; blocks begin at multiples of
        eight words.
        """
        padded = -(-size // 8) * 8
        return cls(6 * first, min(_BLOCK, padded - first), 6 * padded)

    def position(self, candidate: int, side: int, kind: int, index: int) -> int:
        """Returns the position of one word: of the radius (kind 0), the angle (1) or the uniform number (2)."""
        return candidate * self.stride + self.start + (3 * side + kind) * self.length + index


def bounded_laplace_sums(key: bytes, size: int, shape: float, scale: float) -> BoundedDraws:
    """Returns differences of two Gamma(shape) draws times `scale`, with a bound on their errors.

    Args:
        key: Key of the stream, 32 bytes.
        size: Number of draws.
        shape: Shape of the Gamma draws, at least 1, which is the number of Laplace draws in the sum.
        scale: Scale of the Laplace draws.
    """
    draws = np.empty(size)
    error, largest = 0.0, 0.0
    for first in range(0, size, _BLOCK):
        gammas, gamma_error, largest_gamma = _gamma_block(key, _Words.in_block(size, first), shape)
        differences = draws[first : first + _BLOCK]
        np.subtract(gammas[0, : len(differences)], gammas[1, : len(differences)], out=differences)
        differences *= scale
        # of both, of the difference and of the product with the scale
        error = max(error, scale * (2 * gamma_error + 2.1 * _UNIT * largest_gamma))
        largest = max(largest, 1.01 * scale * largest_gamma)
    return BoundedDraws(draws, error, largest)


def laplace_sums(key: bytes, size: int, shape: float) -> Floats:
    """Returns the draws of `bounded_laplace_sums` with scale 1. Draws that float64 does not decide are computed in
    multiple precision.

    Raises:
        PrivacyError: If a thousand bits do not decide a draw.
    """
    from mpmath.libmp import to_float

    draws = bounded_laplace_sums(key, size, shape, 1.0).draws
    for index in np.flatnonzero(np.isnan(draws)).tolist():
        for extra in range(2, 16):
            interval = real_laplace_sum(key, size, index, extra, shape)
            if interval is not None:
                draws[index] = to_float(interval[0])
                break
        else:
            raise PrivacyError("a Gamma draw used up all its random words: the random stream is broken")
    return draws


def _gamma_block(key: bytes, block: _Words, shape: float) -> tuple[Floats, float, float]:
    """Returns the Gamma draws of a block, `[2, length]`, with bounds on their errors and absolute values; NaN if
    undecided.
    """
    gammas = np.full(2 * block.length, np.nan)
    missing = np.arange(2 * block.length)
    error, largest = 0.0, 0.0
    for candidate in range(_MOST_CANDIDATES):
        stream = Keystream(key, block.position(candidate, 0, 0, 0))
        words = stream.words(6 * block.length).reshape(2, 3, block.length)
        values, is_accepted, is_refused, bounds = _candidates(
            words[:, 0].reshape(-1)[missing], words[:, 1].reshape(-1)[missing], words[:, 2].reshape(-1)[missing], shape
        )
        gammas[missing[is_accepted]] = values[is_accepted]
        error, largest = max(error, bounds[0]), max(largest, bounds[1])
        missing = missing[is_refused]
        if not len(missing):
            break
    return gammas.reshape(2, -1), error, largest


def _candidates(
    radius_words: NDArray[np.int64], angle_words: NDArray[np.int64], uniform_words: NDArray[np.int64], shape: float
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_], tuple[float, float]]:
    """Returns candidates from their words.

    Returns:
        The Gamma draw of each candidate; a mask of the candidates that are certainly accepted; a mask of those that are
        certainly rejected; and bounds on the errors and absolute values of the draws.
    """
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    radius = draw_odd_multiples(radius_words)
    radius *= radius
    np.sqrt(np.negative(np.log(radius, out=radius), out=radius), out=radius)
    least_radius, x_limit = bounded_radii(radius, _LIMITS)
    x_error = max(normal_error(least_radius), normal_error(x_limit))
    x = torch.cos(torch.from_numpy(angle_words * (math.pi * 2.0**-63))).numpy()
    x *= radius

    root = c * x
    root += 1.0
    root_limit = 1 + 1.01 * c * x_limit
    root_error = 1.01 * (c * x_error + 5.5 * _UNIT * root_limit)
    v = root * root
    v *= root
    v_error = 3.1 * root_limit**2 * root_error + 2.1 * _UNIT * root_limit**3
    draws = v * d

    log_u = np.abs(draw_odd_multiples(uniform_words))
    np.log(log_u, out=log_u)
    largest_log = limit_logarithms(log_u)
    has_bound = root >= _LEAST_ROOT
    least_root = float(root.min(where=has_bound, initial=1.0))
    log_root = np.log(np.where(has_bound, root, np.nan))
    log_limit = 1.01 * max(-math.log(least_root), math.log(root_limit))
    # negative for those that are accepted
    excess = log_u - x * x / 2 - d * (1 - v + 3 * log_root)
    bracket_limit = 1 + root_limit**3 + 3 * log_limit
    bracket_error = v_error + 3.1 * root_error / least_root + 3.1 * (WORST_UNITS + 1) * _UNIT * log_limit
    bracket_error += 3.1 * _UNIT * bracket_limit
    excess_error = exponential_error(largest_log) + x_limit * x_error + 1.1 * _UNIT * x_limit**2
    excess_error += d * bracket_error + 2.7 * _UNIT * d * bracket_limit
    excess_error += 2.1 * _UNIT * (largest_log + x_limit**2 + d * bracket_limit)
    excess_error *= 1.01

    is_accepted = excess < -excess_error
    is_refused = (excess > excess_error) | (root < -root_error)
    error = d * (v_error + 2.7 * _UNIT * root_limit**3)
    return draws, is_accepted, is_refused, (1.01 * error, 1.01 * d * root_limit**3)


def real_laplace_sum(key: bytes, size: int, index: int, extra: int, shape: float) -> Interval | None:
    """Returns an interval that contains one of `size` draws of `bounded_laplace_sums` of scale 1; see `real_normal`."""
    from mpmath.libmp.libmpi import mpi_sub

    first, second = (_real_gamma(key, size, index, side, extra, shape) for side in (0, 1))
    if first is None or second is None:
        return None
    return mpi_sub(first, second, PRECISION + 64 * extra)


def _real_gamma(key: bytes, size: int, index: int, side: int, extra: int, shape: float) -> Interval | None:
    """Returns an interval that contains one Gamma draw; None if these words do not determine the candidate."""
    first = index // _BLOCK * _BLOCK
    block = _Words.in_block(size, first)
    for candidate in range(_MOST_CANDIDATES):
        radius, angle, uniform = (
            leading_bits(key, block.position(candidate, side, kind, index - first), extra) for kind in range(3)
        )
        x, log_u = box_muller(radius, angle, is_cosine=True), log_of_uniform(uniform)
        if x is None or log_u is None:
            return None
        decision = _decide(x, log_u, PRECISION + 64 * extra, shape)
        if decision is None:
            return None
        is_accepted, draw = decision
        if is_accepted:
            return draw
    return None


def _decide(x: Interval, log_u: Interval, precision: int, shape: float) -> tuple[bool, Interval] | None:
    """Returns True if a candidate is accepted, and its draw; None if the intervals do not decide this."""
    from mpmath.libmp import from_float, from_int, fzero, mpf_le, mpf_lt
    from mpmath.libmp.libmpi import mpi_add, mpi_div, mpi_mul, mpi_sqrt, mpi_sub

    one, two, three, nine = ((from_int(number), from_int(number)) for number in (1, 2, 3, 9))
    exact_shape = from_float(shape)
    d = mpi_sub((exact_shape, exact_shape), mpi_div(one, three, precision), precision)
    c = mpi_div(one, mpi_sqrt(mpi_mul(nine, d, precision), precision), precision)
    root = mpi_add(one, mpi_mul(c, x, precision), precision)
    if mpf_le(root[1], fzero):
        return False, root
    if mpf_le(root[0], fzero):
        return None
    v = mpi_mul(root, mpi_mul(root, root, precision), precision)
    draw = mpi_mul(d, v, precision)
    bracket = mpi_add(mpi_sub(one, v, precision), mpi_mul(three, _log(root, precision), precision), precision)
    square = mpi_div(mpi_mul(x, x, precision), two, precision)
    excess = mpi_sub(mpi_sub(log_u, square, precision), mpi_mul(d, bracket, precision), precision)
    if mpf_lt(excess[1], fzero):
        return True, draw
    if mpf_lt(fzero, excess[0]):
        return False, draw
    return None


def _log(interval: Interval, precision: int) -> Interval:
    """Returns an interval with the logarithms of positive numbers, ten bits wider than the rounding of mpmath."""
    from mpmath.libmp.libmpi import mpi_log

    return with_slack(mpi_log(interval, precision), precision)
