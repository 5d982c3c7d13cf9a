"""Computes the privacy cost of Gaussian noise that is correlated between rounds, for any matrix C and any number of
rounds.

Round t releases ``g_t + s (C^-1 Z)_t``: Z has independent standard normal rows, and C is lower-triangular Toeplitz with
ones on its diagonal, public and fixed before the run. Multiplied by C, all rounds together are ``C G + s Z``, which is
one Gaussian release, also if g_t depends on the releases before it (Denisov, McMahan, Rush, Smith, Thakurta 2022,
theorem 2.1). A unit takes part in at most every B-th round. So it changes C G by at most Delta (its largest change of a
g_t) times the largest norm of a sum of columns of C over such rounds. The proofs are in docs/design/0006-correlated.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError

Array = NDArray[np.float64]
_LARGEST = 1e3  # of a coefficient
_MOST = 100_000  # coefficients of a band
_MOST_ROUNDS = 2**22


@dataclass(frozen=True)
class Factor:
    """A lower-triangular Toeplitz matrix C with ones on the diagonal, of as many rows as there are rounds.

    Below the diagonal its column has the numbers of `band`, and zeros after them, or else ``c_j = sum_i scales_i
    decays_i^(j-1)`` for j from 1 on (McMahan et al. 2024, buffered linear Toeplitz). With neither, C = I and the noise
    is independent.

    Args:
        band: ``c_1, ..., c_(b-1)``.
        scales: Weight of each buffer, at least 0.
        decays: Decay of each buffer, in [0, 1).

    Raises:
        ValueError: If a number is out of range, or there are both a band and buffers.
    """

    band: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        fits = len(self.scales) == len(self.decays) and not (self.band and self.scales) and len(self.band) < _MOST
        small = all(abs(number) <= _LARGEST for number in (*self.band, *self.scales))  # also: not NaN
        # a later increase would raise the cost of earlier rounds
        if not (fits and small and all(0 <= d < 1 for d in self.decays) and all(s >= 0 for s in self.scales)):
            raise ValueError("is not a factor: use a band, or buffers with scales from 0 and decays in [0, 1)")

    @property
    def name(self) -> str:
        """A digest of the matrix, which identifies it in records."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    @property
    def reach(self) -> float:
        """Number of rounds of C G that a contribution in one round affects, including that round."""
        if self.scales:
            return math.inf
        return 1 + len(self.band)

    def column(self, rounds: int) -> Array:
        """Returns the first column of C, `[rounds]`."""
        column = np.zeros(max(rounds, 1))
        column[0] = 1.0
        column[1 : 1 + len(self.band)] = self.band[: max(rounds - 1, 0)]
        powers = np.arange(max(rounds - 1, 0))
        for scale, decay in zip(self.scales, self.decays, strict=True):
            column[1:] += scale * decay**powers
        return column[:rounds]


INDEPENDENT = Factor()


@dataclass(frozen=True)
class CorrelatedNoise:
    """The correlation of the noise of a run's rounds.

    Attributes:
        factor: The matrix C.
        separation: Number of fixed blocks of units that take turns, one block in each round; with 1, all units take
            part in every round.
        block: The block that takes part in the round of a record: the round modulo `separation`.
    """

    factor: Factor
    separation: int
    block: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.block < self.separation:
            raise ValueError("no block takes part")

    def for_round(self, round_index: int) -> CorrelatedNoise:
        """Returns a copy for the record of a round."""
        return replace(self, block=round_index % self.separation)

    def share(self, round_index: int) -> float:
        """Returns the increase of the squared sensitivity in this round, for a clipped sum of sensitivity 1.

        The numbers of rounds 0 to t add up to the squared sensitivity of these rounds together. They have no meaning
        for a set of rounds with gaps.
        """
        if round_index >= _MOST_ROUNDS:
            raise ConfigError(
                "record.round",
                round_index,
                f"the privacy cost of correlated noise is known for at most {_MOST_ROUNDS} rounds: use fewer rounds",
            )
        return float(_shares(self.factor, 1 << max(round_index.bit_length(), 8), self.separation)[round_index])

    def sampled_share(self, round_index: int) -> float:
        """Returns the equivalent of `share` if a unit takes part in each round of its block with a probability, drawn
        in secret.

        It is the squared norm of one column of C in the rounds of the first block, where units join most often, and
        zero in the rounds of all other blocks.

        Raises:
            ConfigError: If the contributions of one unit in two rounds would overlap, for which no cost is known.
        """
        if self.factor.reach > self.separation:
            fix = (
                f"with secret draws from blocks, noise may be correlated over at most {self.separation} rounds, the "
                "number of blocks: use a narrower band"
            )
            raise ConfigError("privacy.noise.correlated", f"reaches over {self.factor.reach:g} rounds", fix)
        is_first_block = round_index % self.separation == 0
        if is_first_block:
            return float(np.square(self.factor.column(1 + len(self.factor.band))).sum())
        return 0.0


def compute_sensitivity(factor: Factor, rounds: int, separation: int) -> float:
    """Returns the largest Frobenius norm of `C G - C G'`, if one unit changes rows at least `separation` apart by 1.

    The result is exact if the band fits into the separation, and for decreasing non-negative coefficients (Kalinin and
    Lampert 2024, theorem 2). Otherwise it is an upper bound.
    """
    return math.sqrt(float(compute_shares(factor, rounds, separation).sum()))


@lru_cache(maxsize=32)
def _shares(factor: Factor, rounds: int, separation: int) -> Array:
    return compute_shares(factor, rounds, separation)


def compute_shares(factor: Factor, rounds: int, separation: int) -> Array:
    """Returns the increase of the squared sensitivity in each round, `[rounds]`.

    The first t numbers add up to the squared sensitivity of the leading t rows of C.

    The worst unit takes part in rounds 0, B, 2B and so on, for any number of rounds.
    """
    column = np.abs(factor.column(max(rounds, 1 + len(factor.band))))
    if factor.reach > separation:  # releases about one unit overlap: no later coefficient may be larger
        column = np.maximum.accumulate(column[::-1])[::-1]
    padded = np.zeros(-(-rounds // separation) * separation)
    padded[:rounds] = column[:rounds]
    return padded.reshape(-1, separation).cumsum(0).reshape(-1)[:rounds] ** 2


def compute_row_variances(factor: Factor, rounds: int) -> Array:
    """Returns the variance of each row of ``C^-1 Z``, `[rounds]`."""
    return np.cumsum(invert_column(factor.column(rounds)) ** 2)


def invert_column(column: Array) -> Array:
    """Returns the first column of the inverse of a lower-triangular Toeplitz matrix with unit diagonal, `[rounds]`."""
    from scipy.signal import lfilter

    impulse = np.zeros(len(column))
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], np.trim_zeros(column, "b"), impulse), dtype=np.float64)
