"""Draws made of a ChaCha20 keystream: the one place where secret bits become numbers.

The bits are the keystream of RFC 8439 from block 0 on, its nonce zero, read as little-endian 64-bit words. A draw takes
a fixed number of words and none is rejected, so another device can make the same words with integer operations alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
_BLOCK = 1 << 16  # words of normal draws at a time: they and their squares stay in the cache


class Keystream:
    """An endless stream of draws that belongs to its key.

    Args:
        key: 32 bytes, of which no two streams share the same.

    To those who do not know the key the words look like fair coins (the assumption that ChaCha20 is a pseudorandom
    function); which words were published says nothing of the others.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, size: int) -> NDArray[np.int64]:
        """The next `size` words, as signed integers."""
        return np.frombuffer(self._cipher.update(bytes(8 * size)), "<i8")

    def random(self, size: int) -> Floats:
        """Uniform on [0, 1): the upper 53 bits of a word."""
        return self._upper(size).astype(np.float64) * 2.0**-53

    def below(self, rate: float, size: int) -> NDArray[np.bool_]:
        """`random(size) < rate`, faster: integers are compared."""
        return self._upper(size) < np.uint64(math.ceil(rate * 2**53))

    def standard_normal(self, size: int) -> Floats:
        """N(0, 1), by Box and Muller: sqrt(-2 ln u) cos(a) and sqrt(-2 ln u) sin(a).

        Of each 65536 words (the last ones may be fewer, but even in number) the first half gives the radii, the second
        half the angles; cosines come before sines. u has 63 bits and is at least `2**-63`, so draws end at 9.34
        standard deviations, beyond which the law has `1e-20`. The angle has 53 bits or more: draws lie as densely in
        the tails as elsewhere, where those of an inverse distribution function would leave gaps.
        """
        draws = np.empty(size + size % 2)
        for start in range(0, len(draws), _BLOCK):
            _normal_pairs(self.words(min(_BLOCK, len(draws) - start)), draws[start : start + _BLOCK])
        return draws[:size]

    def standard_exponential(self, size: int) -> Floats:
        """Exponential(1), at most 43.7: -ln u of a u with 63 bits."""
        return -np.log(self._above_zero(size))

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Gamma(shape, 1) for a shape of at least 1 (Marsaglia and Tsang, 2000).

        Each draw has two candidates. Where neither is accepted (1 draw in 400 or fewer) the inverse survival function
        of a further word decides.
        """
        d = shape - 1 / 3
        draws = np.full(size, np.nan)
        for _ in range(2):
            x, ln_u = self.standard_normal(size), np.log(self._above_zero(size))
            v = np.maximum(1 + x / math.sqrt(9 * d), 0) ** 3
            with np.errstate(divide="ignore"):  # ln 0: refused
                accepted = ln_u < x * x / 2 + d * (1 - v + np.log(v))
            draws = np.where(np.isnan(draws) & accepted, d * v, draws)
        left, last = np.isnan(draws), self._above_zero(size)
        draws[left] = special.gammainccinv(shape, last[left])
        return draws

    def permutation(self, x: int) -> NDArray[np.int64]:
        """An order of `0..x-1`: that of x words, of which two are alike with probability `x**2 / 2**65`."""
        return np.argsort(self.words(x), kind="stable")

    def _upper(self, size: int) -> NDArray[np.uint64]:
        """The upper 53 bits of as many words."""
        return self.words(size).view("<u8") >> np.uint64(11)

    def _above_zero(self, size: int) -> Floats:
        """Uniform on (0, 1], 63 bits."""
        return np.abs(_odd(self.words(size)))


def _normal_pairs(words: NDArray[np.int64], draws: Floats) -> None:
    """Fill `draws` from as many words."""
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
