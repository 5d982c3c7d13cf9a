"""Randomness by name: every draw belongs to a (run, purpose, round, index, client) and to nothing else.

A resumed run repeats its draws exactly and two different answers never share one. Streams are keyed by a 192-bit hash:
torch's own CPU generator keeps only 32 bits of its seed, so among a few million answers some would share their noise.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

Purpose = Literal["batch", "noise", "init", "cohort", "secret_cohort", "topology", "digest"]
_SECRET: tuple[Purpose, ...] = ("batch", "noise", "secret_cohort", "digest")
Floats = NDArray[np.float64]


class Stream(Protocol):
    """The draws that fedpriv makes; `numpy.random.Generator` has them."""

    def random(self, size: int) -> Floats:
        """Uniform on [0, 1)."""
        ...

    def standard_normal(self, size: int) -> Floats:
        """N(0, 1)."""
        ...

    def standard_exponential(self, size: int) -> Floats:
        """Exponential(1)."""
        ...

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Gamma(shape, 1)."""
        ...

    def permutation(self, x: int) -> NDArray[np.int64]:
        """A uniform order of `0..x-1`."""
        ...


@dataclass(frozen=True)
class Randomness:
    """The named random streams of one run.

    Args:
        seed: The run's seed. Whoever knows it can subtract the noise: keep it as secret as the data.
        secure: Draw batches and noise from the operating system instead: not reproducible, hence not replayable.
        attempt: How often the run was resumed with fresh noise, in a form that never repeats.
        run: Names the run, so that two runs of one seed share no noise.
    """

    seed: int
    secure: bool = False
    attempt: int = 0
    run: str = ""

    def stream(self, purpose: Purpose, round_index: int = 0, index: int = 0, client: int = 0) -> Stream:
        """Open the stream of that name. The same name gives the same numbers, unless `secure`."""
        if self.secure and purpose in _SECRET:
            return SystemStream()
        key: Any = _Key(self._key(purpose, round_index, index, client))  # numpy's stubs know SeedSequence only
        return np.random.Generator(np.random.SFC64(key))

    def digest_key(self) -> bytes:
        """Key of the ledger's digests, so that they tell nothing to those who do not know the seed."""
        return os.urandom(16) if self.secure else self._key("digest", 0, 0, 0)

    def _key(self, purpose: Purpose, round_index: int, index: int, client: int) -> bytes:
        # public cohorts and initial values are public and outlive a restart with fresh noise
        attempt = self.attempt if purpose in _SECRET else 0
        name = f"{self.seed}/{self.run}/{attempt}/{purpose}/{round_index}/{index}/{client}"
        return hashlib.blake2b(name.encode(), digest_size=32).digest()

    def torch_seed(self, purpose: Purpose, round_index: int = 0, client: int = 0) -> int:
        """A 63-bit seed for torch's own generators (initial weights, dropout): never for noise."""
        return int.from_bytes(self._key(purpose, round_index, 0, client)[:8], "little") >> 1


class _Key(ISeedSequence):
    """A hash as the seed of a bit generator: it is well mixed already, and numpy's own mixing takes longer."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:  # noqa: ANN401 - numpy's own
        """The first `n_words` of the key."""
        return np.frombuffer(self._key, dtype, n_words)


class SystemStream:
    """Draws made of the operating system's cryptographic randomness, by inverse distribution functions."""

    def random(self, size: int) -> Floats:
        """Uniform on [0, 1), 52 bits."""
        bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(12)
        return bits.astype(np.float64) * 2.0**-52

    def standard_normal(self, size: int) -> Floats:
        """N(0, 1)."""
        return special.ndtri(self._open(size))

    def standard_exponential(self, size: int) -> Floats:
        """Exponential(1)."""
        return -np.log(self._open(size))

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Gamma(shape, 1)."""
        return special.gammaincinv(shape, self._open(size))

    def permutation(self, x: int) -> NDArray[np.int64]:
        """A uniform order of `0..x-1`."""
        return np.argsort(np.frombuffer(os.urandom(8 * x), np.uint64), kind="stable")

    def _open(self, size: int) -> Floats:
        """Uniform on the open interval (0, 1)."""
        return self.random(size) + 2.0**-53


def normal(stream: Stream, dim: int) -> Tensor:
    """`dim` standard normal draws in float64."""
    return torch.from_numpy(stream.standard_normal(dim))


def laplace(stream: Stream, dim: int) -> Tensor:
    """`dim` draws of Laplace(1) in float64: the difference of two exponentials."""
    return torch.from_numpy(stream.standard_exponential(dim) - stream.standard_exponential(dim))


def laplace_sum(stream: Stream, dim: int, amount: float) -> Tensor:
    """`dim` draws of the sum of `amount` draws of Laplace(1), not always a whole number of them.

    Laplace(1) is a difference of two Gamma(1) draws, and shapes of Gamma draws add up.
    """
    return torch.from_numpy(stream.standard_gamma(amount, dim) - stream.standard_gamma(amount, dim))
