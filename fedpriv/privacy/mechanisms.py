"""Noise laws, and the one function that adds noise and writes down that it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.record import MechanismName, Record
from fedpriv.randomness.streams import Randomness, laplace, laplace_sum, normal


class Mechanism(Protocol):
    """A noise law of unit scale."""

    @property
    def name(self) -> MechanismName:
        """The name that records carry."""
        ...

    @property
    def deviation(self) -> float:
        """Standard deviation of noise of scale 1."""
        ...

    def draw(self, randomness: Randomness, at: Address, dim: int, amount: float = 1.0) -> Tensor:
        """Unit noise, `[dim]` in float64.

        Args:
            randomness: The run's streams.
            at: Names the stream.
            dim: How many draws.
            amount: Draw the sum of so many independent copies of the law, at least 1 and not always whole: where noise
                is made of shares, more participants than have to share it add more of it.
        """
        ...


EVERYBODY = -1
"""The client of an address when a sum over clients has noise of its own."""


@dataclass(frozen=True)
class Address:
    """Whose answer it is: (round, index within the round, client or `EVERYBODY`)."""

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

    @property
    def deviation(self) -> float:
        """1: the scale is the standard deviation."""
        return 1.0

    def draw(self, randomness: Randomness, at: Address, dim: int, amount: float = 1.0) -> Tensor:
        """Normal draws of variance `amount`."""
        return normal(randomness.stream("noise", at.round, at.index, at.client), dim) * math.sqrt(amount)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise; the scale is its b. Fits an l1 clip; gives pure epsilon."""

    @property
    def name(self) -> MechanismName:
        """`"laplace"`."""
        return "laplace"

    @property
    def deviation(self) -> float:
        """The root of 2."""
        return math.sqrt(2)

    def draw(self, randomness: Randomness, at: Address, dim: int, amount: float = 1.0) -> Tensor:
        """Laplace draws, or differences of two Gamma(amount) draws, which are Laplace for amount 1."""
        stream = randomness.stream("noise", at.round, at.index, at.client)
        return laplace(stream, dim) if amount == 1 else laplace_sum(stream, dim, amount)


MECHANISMS: dict[str, Mechanism] = {"gaussian": Gaussian(), "laplace": Laplace()}


def add_noise(
    bounded: Tensor,
    scales: Sequence[float],
    mechanism: Mechanism,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    amount: float = 1.0,
) -> Release:
    """Add noise to bounded sums and make the release.

    Args:
        bounded: `[k, dim]`, row i within its sensitivity.
        scales: Noise scale of each row, in the units of `bounded`.
        mechanism: The law.
        record: What the release is; it must state the noise multiplier that `scales` amount to.
        randomness: The run's streams.
        clients: Population index of each row, or `EVERYBODY`.
        amount: How many times the law is added; see `Mechanism.draw`.

    Returns:
        The release, in float64; only a ledger opens it.

    Noise is drawn and added in float64 and the sum rounded to a grid of `2**-20` of the scale's power of two. Noise
    drawn in float32 betrays the value under it (Mironov, 2012); this is a mitigation, not a proof.
    """
    if any(not (math.isfinite(s) and s > 0) for s in scales):
        raise ConfigError("noise scale", min(scales), "noise must be positive and finite; use at: none for no noise")
    noised = torch.empty_like(bounded, dtype=torch.float64)
    for row, (client, scale) in enumerate(zip(clients, scales, strict=True)):
        unit = mechanism.draw(randomness, Address(record.round, record.index, client), bounded.shape[1], amount)
        grid = 2.0 ** (math.ceil(math.log2(scale)) - 20)
        exact = bounded[row].double() + (unit * scale).to(bounded.device)
        noised[row] = (exact / grid).round_() * grid
    return Release(replace(record, mechanism=mechanism.name, attempt=randomness.attempt), noised)
