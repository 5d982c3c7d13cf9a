"""Computes the real numbers that float64 draws approximate, to any number of bits, and bounds the errors of the draws.

A word of a keystream is the beginning of a real number that is uniform on an interval; its further bits come from
another keystream of the same key. So a stream determines real normal and Laplace draws. `Keystream` computes them in
float64 (`bounded_normal`, `bounded_laplace`); docs/design/0012-exact-noise.md proves the bounds on their errors.

The proof needs IEEE 754 arithmetic with correctly rounded square roots. It also needs a relative error of `numpy.log`
of at most `WORST_UNITS` units of `2^-53`, and an absolute error of `torch.cos` and `torch.sin` of at most the same
number. The documented errors are less than a quarter of these bounds. `check_functions` compares them with the C
library's once per process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedpriv.errors import PrivacyError
from fedpriv.randomness.keystream import BLOCK, WORST_UNITS

Interval = tuple[Any, Any]
"""Two numbers of mpmath; the first is at most the second."""
_UNIT = 2.0**-53
PRECISION = 128
"""Bits of the first attempt; each further word adds 64."""
_WORDS_OF_BLOCK = 8  # words of 64 bits that the cipher makes together


@dataclass(frozen=True)
class LeadingBits:
    """The beginning of a number that is uniform on [-1, 1): from ``number / 2**bits`` to ``(number + 1) / 2**bits``."""

    number: int
    bits: int


@dataclass(frozen=True)
class WordsOfNormal:
    """Positions of the words of a normal draw in its stream, and the function: cosine or sine."""

    radius: int
    angle: int
    is_cosine: bool


def locate_normal_words(size: int, index: int) -> WordsOfNormal:
    """Returns the positions of the words of one of `size` draws; see `Keystream.standard_normal`."""
    even = size + size % 2
    start = index // BLOCK * BLOCK
    half = min(BLOCK, even - start) // 2
    position = index - start
    pair = start + position % half
    return WordsOfNormal(pair, pair + half, is_cosine=position < half)


def real_normal(key: bytes, size: int, index: int, extra: int) -> Interval | None:
    """Returns an interval that contains one of `size` standard normal draws.

    Args:
        key: Key of the stream.
        size: Number of draws, as for `Keystream.standard_normal`.
        index: Number of the draw, from 0.
        extra: Number of further words of each uniform number. Each further word makes the interval smaller.

    Returns:
        The interval; None if these words do not bound it.
    """
    words = locate_normal_words(size, index)
    radius, angle = leading_bits(key, words.radius, extra), leading_bits(key, words.angle, extra)
    return box_muller(radius, angle, is_cosine=words.is_cosine)


def real_laplace(key: bytes, size: int, index: int, extra: int) -> Interval | None:
    """Returns an interval that contains one of `size` draws of Laplace(1); see `real_normal`."""
    from mpmath.libmp.libmpi import mpi_sub

    first = log_of_uniform(leading_bits(key, index, extra))
    second = log_of_uniform(leading_bits(key, size + index, extra))
    if first is None or second is None:
        return None
    return mpi_sub(second, first, PRECISION + 64 * extra)


def box_muller(radius: LeadingBits, angle: LeadingBits, *, is_cosine: bool) -> Interval | None:
    """Returns an interval that contains a normal number, from two uniform numbers; None if more bits are needed to
    bound the radius.
    """
    from mpmath.libmp import from_man_exp, mpf_pi
    from mpmath.libmp.libmpi import mpi_cos, mpi_mul, mpi_neg, mpi_sin, mpi_sqrt

    log = log_of_uniform(radius)
    if log is None:
        return None
    precision = _precision(radius)
    two = from_man_exp(2, 0)
    length = mpi_sqrt(mpi_neg(mpi_mul(log, (two, two), precision)), precision)
    half_turns = (from_man_exp(angle.number, -angle.bits), from_man_exp(angle.number + 1, -angle.bits))
    radians = mpi_mul(half_turns, (mpf_pi(precision, "f"), mpf_pi(precision, "c")), precision)
    if is_cosine:
        direction = mpi_cos(radians, precision)
    else:
        direction = mpi_sin(radians, precision)
    return with_slack(mpi_mul(length, direction, precision), precision)


def log_of_uniform(leading: LeadingBits) -> Interval | None:
    """Returns an interval that contains the logarithm of the absolute value of a uniform number; None if more bits are
    needed to bound it.

    Draws in float64 do not use the lowest bit of the first word, so it is not used here either. The word represents an
    interval of width two, and the further bits determine the position in this interval.
    """
    from mpmath.libmp import from_man_exp
    from mpmath.libmp.libmpi import mpi_log

    further = leading.bits - 63
    word = leading.number >> further
    lowest = ((word & ~1) << further) + 2 * (leading.number & ((1 << further) - 1))
    ends = sorted((abs(lowest), abs(lowest + 2)))
    if ends[0] == 0:
        return None
    precision = _precision(leading)
    log = mpi_log((from_man_exp(ends[0], -leading.bits), from_man_exp(ends[1], -leading.bits)), precision)
    return with_slack(log, precision)


def _precision(leading: LeadingBits) -> int:
    return PRECISION + leading.bits - 63


def with_slack(interval: Interval, precision: int) -> Interval:
    """Returns a wider interval. The last ten bits of mpmath's functions are not relied on."""
    from mpmath.libmp.libmpi import mpi_mul

    return mpi_mul(interval, _slack(precision), precision)


@cache
def _slack(precision: int) -> Interval:
    """Returns an interval around 1, ten bits wider than the rounding of a number."""
    from mpmath.libmp import from_man_exp

    one = 1 << precision
    return from_man_exp(one - 2**10, -precision), from_man_exp(one + 2**10, -precision)


def leading_bits(key: bytes, word: int, extra: int) -> LeadingBits:
    """Returns a word of a keystream with further bits.

    The further bits of word k are the keystream with nonce k + 1; nonce 0 is used for the words themselves.
    """
    block, offset = divmod(word, _WORDS_OF_BLOCK)
    first = _keystream(key, block.to_bytes(4, "little") + bytes(12), 8 * (offset + 1))[8 * offset :]
    number = int.from_bytes(first, "little", signed=True)
    if extra:
        more = _keystream(key, bytes(4) + (word + 1).to_bytes(12, "little"), 8 * extra)
        number = (number << 64 * extra) + int.from_bytes(more, "big")
    return LeadingBits(number, 63 + 64 * extra)


def _keystream(key: bytes, nonce: bytes, size: int) -> bytes:
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(size))


@cache
def check_functions() -> None:
    """Compares numpy's logarithm and torch's cosine and sine with the C library's, at several thousand points.

    Raises:
        PrivacyError: If they differ by more than half of the proof's bound.
    """
    points = np.concatenate([np.linspace(-math.pi, math.pi, 2048), math.pi / 2 * np.arange(-2, 3) * (1 - 2.0**-40)])
    uniforms = np.concatenate([np.geomspace(2.0**-63, 1, 2048), 1 - np.geomspace(2.0**-52, 0.5, 512)])
    log = np.log(uniforms)
    expected_log = np.array([math.log(uniform) for uniform in uniforms.tolist()])
    differences = {
        "numpy.log": float(np.abs((log - expected_log) / np.where(log == 0, 1.0, log)).max()),
        "torch.cos": _largest_difference(torch.cos, math.cos, points),
        "torch.sin": _largest_difference(torch.sin, math.sin, points),
    }
    for name, difference in differences.items():
        if not difference <= WORST_UNITS / 2 * _UNIT:
            raise PrivacyError(
                f"{name} differs from the C library's by {difference:.1e} on this machine, more than the noise "
                "allows, so nothing can be released. Install other builds of numpy and torch"
            )


def _largest_difference(function: Any, reference: Any, points: np.ndarray[Any, Any]) -> float:  # noqa: ANN401
    values = function(torch.from_numpy(points)).numpy()
    return float(np.abs(values - np.array([reference(point) for point in points.tolist()])).max())
