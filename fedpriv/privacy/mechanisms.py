"""Noise laws, and the one function that adds noise and writes down that it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger import MechanismName, Record, Release
from fedpriv.privacy.randomness import Randomness, laplace, laplace_share, normal


class Mechanism(Protocol):
    """A noise law of unit scale."""

    @property
    def name(self) -> MechanismName:
        """The name that records carry."""
        ...

    def draw(self, randomness: Randomness, at: Address, dim: int, parties: int) -> Tensor:
        """One party's share of unit noise, `[dim]` in float64: the shares of `parties` add up to the law itself."""
        ...


@dataclass(frozen=True)
class Address:
    """Whose answer it is: (round, index within the round, client)."""

    round: int
    index: int
    client: int


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise; the scale is its standard deviation. Fits an l2 clip."""

    @property
    def name(self) -> MechanismName:
        """`"gaussian"`."""
        return "gaussian"

    def draw(self, randomness: Randomness, at: Address, dim: int, parties: int) -> Tensor:
        """Normal draws of variance `1 / parties`."""
        return normal(randomness.stream("noise", at.round, at.index, at.client), dim) / math.sqrt(parties)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise; the scale is its b. Fits an l1 clip; gives pure epsilon."""

    @property
    def name(self) -> MechanismName:
        """`"laplace"`."""
        return "laplace"

    def draw(self, randomness: Randomness, at: Address, dim: int, parties: int) -> Tensor:
        """Laplace draws, or a difference of two Gamma(1/parties) draws when it is a share."""
        stream = randomness.stream("noise", at.round, at.index, at.client)
        return laplace(stream, dim) if parties == 1 else laplace_share(stream, dim, parties)


MECHANISMS: dict[str, Mechanism] = {"gaussian": Gaussian(), "laplace": Laplace()}


def add_noise(
    bounded: Tensor,
    scales: Sequence[float],
    mechanism: Mechanism,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    parties: int = 1,
) -> Release:
    """Add noise to bounded sums and make the release.

    Args:
        bounded: `[k, dim]`, row i within its sensitivity.
        scales: Noise scale of each row, in the units of `bounded`.
        mechanism: The law.
        record: What the release is; it must state the noise multiplier that `scales` amount to.
        randomness: The run's streams.
        clients: Population index of each row.
        parties: In how many shares the noise is drawn (secure aggregation); 1 when each row is seen alone.

    Returns:
        The release; only a ledger opens it.

    Noise is drawn and added in float64 and the sum rounded to a grid of `2**-20` of the scale's power of two. Noise
    drawn in float32 betrays the value under it (Mironov, 2012); this is a mitigation, not a proof.
    """
    if any(not (math.isfinite(s) and s > 0) for s in scales):
        raise ConfigError("noise scale", min(scales), "noise must be positive and finite; use at: none for no noise")
    noised = torch.empty_like(bounded)
    for row, (client, scale) in enumerate(zip(clients, scales, strict=True)):
        unit = mechanism.draw(randomness, Address(record.round, record.index, client), bounded.shape[1], parties)
        grid = 2.0 ** (math.ceil(math.log2(scale)) - 20)
        exact = bounded[row].double() + (unit * scale).to(bounded.device)
        noised[row] = ((exact / grid).round_() * grid).to(bounded.dtype)
    return Release(replace(record, mechanism=mechanism.name), noised)
