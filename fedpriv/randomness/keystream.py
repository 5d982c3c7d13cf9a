"""Cryptographic random numbers from a ChaCha20 keystream.

The bits are the keystream of RFC 8439 from block 0 on, with nonce zero, read as little-endian 64-bit words. Each draw
uses a fixed number of words; no word is rejected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCK = 1 << 16  # words of normal draws at a time: they and their squares stay in the cache
_ZEROS = memoryview(bytes(8 * BLOCK))  # input of the cipher, which turns it into the keystream
WORST_UNITS = 32  # of 2^-53 by which logarithms (relative), cosines and sines (absolute) may err in bounded draws
_UNIT = 2.0**-53
_LARGEST_EXPONENTIAL = 20.0  # beyond it, the error of a draw may be too large for a bound


class RadiusLimits(NamedTuple):
    """Limits of the radius (the factor sqrt(-2 ln u) of a normal draw). Draws between the limits have a bound on their
    error; errors are largest near both limits.

    Attributes:
        least: The smallest radius.
        largest: The largest radius.
    """

    least: float
    largest: float


WIDE = RadiusLimits(2.0**-13, 6.5)
"""The usual limits; eight draws in a billion are outside."""
NARROW = RadiusLimits(2.0**-8, 5.0)
"""Narrower limits, for noise that depends on all earlier rounds. About ten draws in a million are outside. The bound on
the others is typical of the errors in a row, for any number of draws.
"""


class BoundedDraws(NamedTuple):
    """Draws in float64, with bounds on their distance from the real numbers that the stream determines
    (docs/design/0012-exact-noise.md).

    Attributes:
        draws: The draws; NaN where the error is not bounded.
        error: Bound on the absolute error of all other draws.
        largest: Bound on the absolute value of these draws.
    """

    draws: Floats
    error: float
    largest: float


class Keystream:
    """An endless stream of random numbers, determined by a key.

    Args:
        key: 32 bytes; no two streams may have the same key.
        start: Number of the first word. It is a multiple of 8, because the cipher computes eight words at a time.

    Guarantee: without the key, the bits of the words are indistinguishable from independent fair coin flips, even if
    other words of the stream are known (assuming that ChaCha20 is a pseudorandom function).
    """

    def __init__(self, key: bytes, start: int = 0) -> None:
        nonce = (start // 8).to_bytes(4, "little") + bytes(12)
        self._cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()

    def words(self, size: int) -> NDArray[np.int64]:
        """Returns the next `size` words, as signed integers."""
        if 8 * size <= _ZEROS.nbytes:
            return np.frombuffer(self._cipher.update(_ZEROS[: 8 * size]), "<i8")
        words = np.empty(size, "<i8")
        self.fill(words)
        return words

    def fill(self, words: NDArray[np.int64]) -> None:
        """Writes the next words into an array."""
        octets = words.data.cast("B")
        if words.nbytes <= _ZEROS.nbytes:
            self._cipher.update_into(_ZEROS[: words.nbytes], octets)
            return
        for start in range(0, words.nbytes, _ZEROS.nbytes):
            piece = octets[start : start + _ZEROS.nbytes]
            self._cipher.update_into(_ZEROS[: len(piece)], piece)

    def random(self, size: int) -> Floats:
        """Returns uniform draws on [0, 1): the upper 53 bits of each word."""
        return _upper(self.words(size)).astype(np.float64) * 2.0**-53

    def below(self, rate: float, size: int) -> NDArray[np.bool_]:
        """Returns `random(size) < rate`, computed by a comparison of integers, which is faster."""
        return is_below(self.words(size), rate)

    def standard_normal(self, size: int) -> Floats:
        """Returns normal draws N(0, 1), by Box and Muller: sqrt(-2 ln u) cos(a) and sqrt(-2 ln u) sin(a).

        In each block of 65536 words (the last may be shorter) the first half gives the radii, the second half the
        angles; cosines come before sines. u has 63 bits and is at least `2**-63`, so draws are at most 9.34 in absolute
        value, which N(0, 1) exceeds with probability `1e-20`. The angle has at least 53 bits, so there are no gaps in
        the tails, as there would be if the distribution function were inverted.
        """
        draws = np.empty(size + size % 2)
        for start in range(0, len(draws), BLOCK):
            _normal_pairs(self.words(min(BLOCK, len(draws) - start)), draws[start : start + BLOCK])
        return draws[:size]

    def bounded_normal(self, size: int, scale: float, limits: RadiusLimits = WIDE) -> BoundedDraws:
        """Returns the draws of `standard_normal` times `scale`, with a bound on their errors."""
        draws = np.empty(size + size % 2)
        error, largest = 0.0, 0.0
        for start in range(0, len(draws), BLOCK):
            words = self.words(min(BLOCK, len(draws) - start))
            radii = _normal_pairs(words, draws[start : start + BLOCK], scale, limits)
            error = max(error, scale * normal_error(radii[0]), scale * normal_error(radii[1]))
            largest = max(largest, 1.01 * scale * radii[1])
        return BoundedDraws(draws[:size], error, largest)

    def standard_exponential(self, size: int) -> Floats:
        """Returns Exponential(1) draws, at most 43.7: -ln u for u with 63 bits."""
        return -np.log(self._above_zero(size))

    def bounded_laplace(self, size: int, scale: float) -> BoundedDraws:
        """Returns differences of two rows of `standard_exponential` times `scale`, with a bound on their errors."""
        draws, largest = self._bounded_exponential(size, scale)
        others, largest_other = self._bounded_exponential(size, scale)
        draws -= others
        largest = max(largest, largest_other)
        # of both, and of the difference
        error = scale * (2 * exponential_error(largest) + 1.01 * _UNIT * largest)
        return BoundedDraws(draws, error, 1.01 * scale * largest)

    def _bounded_exponential(self, size: int, scale: float) -> tuple[Floats, float]:
        """Returns exponential draws times `scale`, NaN where they are too large, and the largest without the scale."""
        logs = self._above_zero(size)
        np.log(logs, out=logs)
        largest = limit_logarithms(logs)
        logs *= -scale
        return logs, largest

    def permutation(self, x: int) -> NDArray[np.int64]:
        """Returns a random order of `0..x-1`, computed by sorting x words. Two words are equal with probability `x**2 /
        2**65`.
        """
        return make_order(self.words(x))

    def first_of_permutation(self, x: int, count: int) -> NDArray[np.int64]:
        """Returns the first `count` numbers of `permutation(x)`."""
        if count == 1:
            return np.array([self.words(x).argmin()])  # the first of equal words, as in a stable order
        return self.permutation(x)[:count]

    def _above_zero(self, size: int) -> Floats:
        """Returns uniform draws on (0, 1] with 63 bits."""
        return np.abs(draw_odd_multiples(self.words(size)))


def is_below(words: NDArray[np.int64], rate: float) -> NDArray[np.bool_]:
    """Returns, for each word, whether its uniform number on [0, 1) is smaller than `rate`."""
    limit = math.ceil(rate * 2**53) << 11  # of the whole word: its lowest 11 bits decide nothing
    if limit >= 2**64:
        return np.ones(words.shape, dtype=np.bool_)
    return words.view("<u8") < np.uint64(limit)


def uniform_below(words: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Returns, for each word, a whole number from 0 to `n - 1`, uniform up to a relative error of `n / 2**53`; `n` is
    at most `2**20`.
    """
    high, low = np.divmod(_upper(words), np.uint64(2**26))  # 27 and 26 bits: no product overflows
    return ((high * np.uint64(n) + low * np.uint64(n) // np.uint64(2**26)) >> np.uint64(27)).astype(np.int64)


def make_order(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the random order of `0..x-1` that x words determine."""
    return words.argsort(kind="stable")


def _upper(words: NDArray[np.int64]) -> NDArray[np.uint64]:
    return words.view("<u8") >> np.uint64(11)


def normal_error(radius: float) -> float:
    """Returns the largest error of a bounded normal draw of scale 1 with this radius; convex in the radius."""
    logarithm = 1.51 / radius + (WORST_UNITS / 2 + 1.1) * radius
    further_bits = 1.01 * 2.0**-10 * math.exp(radius**2 / 2) / radius
    direction = (WORST_UNITS + 7.5) * radius
    products = 2.1 * radius
    return _UNIT * (logarithm + further_bits + direction + products)


def exponential_error(largest: float) -> float:
    """Returns the largest error of a bounded exponential draw of scale 1 that is at most `largest`."""
    further_bits = 1.01 * 2.0**-10 * math.exp(largest)
    return _UNIT * (1.1 + further_bits + (WORST_UNITS + 1.1) * largest)


def _normal_pairs(
    words: NDArray[np.int64], draws: Floats, scale: float | None = None, limits: RadiusLimits = WIDE
) -> tuple[float, float]:
    """Fills `draws` from the same number of words. With a `scale`, draws are multiplied by it, and draws without an
    error bound are NaN.

    Returns:
        The smallest and the largest radius of draws with a bound; 0 without a scale.
    """
    half = len(words) // 2
    radius = draw_odd_multiples(words[:half])
    radius *= radius  # -2 ln |u| = -ln u^2
    np.sqrt(np.negative(np.log(radius, out=radius), out=radius), out=radius)
    radii = (0.0, 0.0)
    if scale is not None:
        radii = bounded_radii(radius, limits)
        radius *= scale
    angle = torch.from_numpy(words[half:] * (math.pi * 2.0**-63))  # torch has the faster cosines
    cosines, sines = torch.from_numpy(draws[:half]), torch.from_numpy(draws[half:])
    torch.cos(angle, out=cosines)
    torch.sin(angle, out=sines)
    draws[:half] *= radius
    draws[half:] *= radius
    return radii


def normals_of_words(
    radius_words: NDArray[np.int64], angle_words: NDArray[np.int64], is_sine: NDArray[np.bool_], limits: RadiusLimits
) -> tuple[Floats, tuple[float, float]]:
    """Returns the draws of some pairs of words, `[n]`, NaN without an error bound, and the smallest and the largest
    radius of the others.
    """
    radius = draw_odd_multiples(radius_words)
    radius *= radius
    np.sqrt(np.negative(np.log(radius, out=radius), out=radius), out=radius)
    radii = bounded_radii(radius, limits)
    angle = torch.from_numpy(angle_words * (math.pi * 2.0**-63))
    return radius * np.where(is_sine, torch.sin(angle).numpy(), torch.cos(angle).numpy()), radii


def bounded_radii(radius: Floats, limits: RadiusLimits) -> tuple[float, float]:
    """Sets radii outside the limits to NaN. Returns the smallest and the largest of the other radii."""
    least, largest = float(radius.min(initial=1.0)), float(radius.max(initial=1.0))
    if least >= limits.least and largest <= limits.largest:
        return least, largest
    radius[(radius < limits.least) | (radius > limits.largest)] = math.nan
    numbers = radius[~np.isnan(radius)]
    return float(numbers.min(initial=1.0)), float(numbers.max(initial=1.0))


def limit_logarithms(logs: Floats) -> float:
    """Sets logarithms of uniform numbers to NaN if they have no error bound. Returns the largest absolute value of the
    others.
    """
    largest = -float(logs.min(initial=0.0))
    if largest > _LARGEST_EXPONENTIAL:
        logs[logs < -_LARGEST_EXPONENTIAL] = math.nan
        largest = _LARGEST_EXPONENTIAL
    return largest


def draw_odd_multiples(words: NDArray[np.int64]) -> Floats:
    """Returns odd multiples of `2**-63` that are uniform on [-1, 1] without 0."""
    return np.multiply(words | 1, 2.0**-63, dtype=np.float64)
