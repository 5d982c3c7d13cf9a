"""Cryptographic random numbers from a ChaCha20 keystream.

The bits are the keystream of RFC 8439 from block 0 on, with nonce zero, read as little-endian 64-bit words. Each draw
takes a fixed number of words; none is rejected.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
BLOCK = 1 << 16  # words of normal draws at a time: they and their squares stay in the cache


class Keystream:
    """An endless stream of random numbers, determined by a key.

    Args:
        key: 32 bytes; no two streams may have the same.

    Guarantee: without the key the words cannot be told from independent fair coin flips, also when other words of the
    stream are known (assuming that ChaCha20 is a pseudorandom function).
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, size: int) -> NDArray[np.int64]:
        """Returns the next `size` words, as signed integers."""
        return np.frombuffer(self._cipher.update(bytes(8 * size)), "<i8")

    def fill(self, words: NDArray[np.int64]) -> None:
        """Writes the next words into an array."""
        self._cipher.update_into(bytes(words.nbytes), words.data.cast("B"))

    def random(self, size: int) -> Floats:
        """Returns uniform draws on [0, 1): the upper 53 bits of each word."""
        return _upper(self.words(size)).astype(np.float64) * 2.0**-53

    def below(self, rate: float, size: int) -> NDArray[np.bool_]:
        """Returns `random(size) < rate`, by comparing integers, which is faster."""
        return below(self.words(size), rate)

    def standard_normal(self, size: int) -> Floats:
        """Returns normal draws N(0, 1), by Box and Muller: sqrt(-2 ln u) cos(a) and sqrt(-2 ln u) sin(a).

        In each block of 65536 words (the last may be shorter) the first half gives the radii, the second half the
        angles; cosines come before sines. u has 63 bits and is at least `2**-63`, so draws are at most 9.34 in absolute
        value, which N(0, 1) exceeds with probability `1e-20`. The angle has at least 53 bits, which leaves no gaps in
        the tails, as inverting the distribution function would.
        """
        draws = np.empty(size + size % 2)
        for start in range(0, len(draws), BLOCK):
            _normal_pairs(self.words(min(BLOCK, len(draws) - start)), draws[start : start + BLOCK])
        return draws[:size]

    def standard_exponential(self, size: int) -> Floats:
        """Returns Exponential(1) draws, at most 43.7: -ln u for u with 63 bits."""
        return -np.log(self._above_zero(size))

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Returns Gamma(shape, 1) draws for a shape of at least 1 (Marsaglia and Tsang, 2000).

        Each draw has two candidates. Where neither is accepted (at most 1 draw in 400) the inverse survival function
        of a further word is used.
        """
        d = shape - 1 / 3
        draws = np.full(size, np.nan)
        for _ in range(2):
            x, ln_u = self.standard_normal(size), np.log(self._above_zero(size))
            v = np.maximum(1 + x / math.sqrt(9 * d), 0) ** 3
            with np.errstate(divide="ignore"):  # ln 0: refused
                accepted = ln_u < x * x / 2 + d * (1 - v + np.log(v))
            draws = np.where(np.isnan(draws) & accepted, d * v, draws)
        missing = np.isnan(draws)
        uniform = self._above_zero(size)
        draws[missing] = special.gammainccinv(shape, uniform[missing])
        return draws

    def permutation(self, x: int) -> NDArray[np.int64]:
        """A random order of `0..x-1`, by sorting x words; two of them are equal with probability `x**2 / 2**65`."""
        return order_of(self.words(x))

    def _above_zero(self, size: int) -> Floats:
        """Uniform on (0, 1], 63 bits."""
        return np.abs(_odd(self.words(size)))


def below(words: NDArray[np.int64], rate: float) -> NDArray[np.bool_]:
    """Returns, for each word, whether its uniform number on [0, 1) is smaller than `rate`."""
    return _upper(words) < np.uint64(math.ceil(rate * 2**53))


def uniform_below(words: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """For each word, a whole number from 0 to `n - 1`, uniform up to a relative `n / 2**53`; `n` is at most `2**20`."""
    high, low = np.divmod(_upper(words), np.uint64(2**26))  # 27 and 26 bits: no product overflows
    return ((high * np.uint64(n) + low * np.uint64(n) // np.uint64(2**26)) >> np.uint64(27)).astype(np.int64)


def order_of(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the random order of `0..x-1` that x words give."""
    return words.argsort(kind="stable")


def _upper(words: NDArray[np.int64]) -> NDArray[np.uint64]:
    return words.view("<u8") >> np.uint64(11)


def _normal_pairs(words: NDArray[np.int64], draws: Floats) -> None:
    """Fills `draws` from as many words."""
    half = len(words) // 2
    radius = _odd(words[:half])
    radius *= radius  # -2 ln |u| = -ln u^2
    np.sqrt(np.negative(np.log(radius, out=radius), out=radius), out=radius)
    angle = torch.from_numpy(words[half:] * (math.pi * 2.0**-63))  # torch has the faster cosines
    np.multiply(radius, torch.cos(angle).numpy(), out=draws[:half])
    np.multiply(radius, torch.sin(angle).numpy(), out=draws[half:])


def _odd(words: NDArray[np.int64]) -> Floats:
    """Uniform on [-1, 1] without 0: odd multiples of `2**-63`."""
    return np.multiply(words | 1, 2.0**-63, dtype=np.float64)
