"""Randomness by name: every draw belongs to a (run, purpose, round, index, client) and to nothing else.

A resumed run repeats its draws exactly and two different answers never share one. Streams are keyed by a 128-bit hash:
torch's own CPU generator keeps only 32 bits of its seed, so among a few million answers some would share their noise.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Purpose = Literal["batch", "noise", "share", "message", "init", "cohort", "topology"]


@dataclass(frozen=True)
class Randomness:
    """The named random streams of one run.

    Args:
        seed: The run's seed. Whoever knows it can subtract the noise: keep it as secret as the data.
        secure: Draw from keys of the operating system instead of the seed: not reproducible, hence not replayable.
        attempt: 0, or the number of times that the run was resumed with fresh noise.
    """

    seed: int
    secure: bool = False
    attempt: int = 0

    def stream(self, purpose: Purpose, round_index: int = 0, index: int = 0, client: int = 0) -> np.random.Generator:
        """Open the stream of that name. The same name gives the same numbers, unless `secure`."""
        return np.random.Generator(np.random.SFC64(self._key(purpose, round_index, index, client)))

    def _key(self, purpose: Purpose, round_index: int, index: int, client: int) -> int:
        if self.secure and purpose in ("batch", "noise", "share", "message", "cohort"):
            return secrets.randbits(256)
        name = f"{self.seed}/{self.attempt}/{purpose}/{round_index}/{index}/{client}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")

    def torch_seed(self, purpose: Purpose, round_index: int = 0, client: int = 0) -> int:
        """A 63-bit seed for torch's own generators (initial weights, dropout): never for noise."""
        return self._key(purpose, round_index, 0, client) & (2**63 - 1)


def normal(stream: np.random.Generator, dim: int) -> Tensor:
    """`dim` standard normal draws in float64."""
    return torch.from_numpy(stream.standard_normal(dim))


def laplace(stream: np.random.Generator, dim: int) -> Tensor:
    """`dim` draws of Laplace(1) in float64: the difference of two exponentials."""
    return torch.from_numpy(stream.standard_exponential(dim) - stream.standard_exponential(dim))


def laplace_share(stream: np.random.Generator, dim: int, parties: int) -> Tensor:
    """`dim` draws whose sum over `parties` is exactly Laplace(1): a difference of two Gamma(1/parties) draws."""
    gamma = stream.standard_gamma
    return torch.from_numpy(gamma(1 / parties, dim) - gamma(1 / parties, dim))
