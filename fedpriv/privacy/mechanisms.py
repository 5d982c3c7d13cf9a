"""Gaussian and Laplace noise, and the one function that adds it to a bounded sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.privacy.clipping import NormName
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.record import LawName, Record
from fedpriv.randomness.streams import Randomness, laplace, laplace_sum, normal


class Mechanism(Protocol):
    """A distribution of noise, at scale 1."""

    @property
    def name(self) -> LawName:
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
            at: For which answer, and whose; each address has a random stream of its own.
            dim: How many draws.
            amount: Draw the sum of this many independent copies, at least 1, also fractional. With secure aggregation
                it is participants over `min_honest`: extra participants add extra noise.
        """
        ...


EVERYBODY = -1
"""The client of an address when a sum over clients has noise of its own."""


@dataclass(frozen=True)
class Address:
    """Which noise is drawn: (round, index of the answer in the round, client or `EVERYBODY`)."""

    round: int
    index: int
    client: int


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise; its scale is the standard deviation. Use with an l2 clip."""

    @property
    def name(self) -> LawName:
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
    """Laplace noise of density `exp(-|x| / b) / 2b`; its scale is b. Use with an l1 clip: delta may then be 0."""

    @property
    def name(self) -> LawName:
        """`"laplace"`."""
        return "laplace"

    @property
    def deviation(self) -> float:
        """`sqrt(2)`."""
        return math.sqrt(2)

    def draw(self, randomness: Randomness, at: Address, dim: int, amount: float = 1.0) -> Tensor:
        """Differences of two Gamma(amount) draws, which are Laplace draws for amount 1."""
        stream = randomness.stream("noise", at.round, at.index, at.client)
        return laplace(stream, dim) if amount == 1 else laplace_sum(stream, dim, amount)


@dataclass(frozen=True)
class Law:
    """What follows from the name of a mechanism, which says how its noise is priced, whoever draws it.

    Attributes:
        mechanism: Draws the noise.
        norm: Norm of the clip that suits it.
        pure: Whether it has a finite epsilon at delta 0, under that norm.
        within_95: 95 % of draws are within so many standard deviations, those of a mean of several draws too.
    """

    mechanism: Mechanism
    norm: NormName
    pure: bool
    within_95: float


LAWS: dict[LawName, Law] = {
    "gaussian": Law(Gaussian(), "l2", pure=False, within_95=1.959964),
    "laplace": Law(Laplace(), "l1", pure=True, within_95=2.118338),
}
MECHANISMS: dict[str, Mechanism] = {name: law.mechanism for name, law in LAWS.items()}


def add_noise(
    bounded: Tensor,
    scales: Sequence[float],
    mechanism: Mechanism,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    amount: float = 1.0,
) -> Release:
    """Add noise to sums of bounded sensitivity.

    Args:
        bounded: Sums of clipped contributions, `[k, dim]`.
        scales: Noise scale of each row, in the units of `bounded`.
        mechanism: Distribution of the noise.
        record: The ledger record of this release; its noise multiplier must belong to `scales`.
        randomness: The run's random streams.
        clients: Index of each row's client in the run, or `EVERYBODY` for a sum over clients.
        amount: Sum of this many copies of the noise; see `Mechanism.draw`.

    Returns:
        The noised rows, in float64, as a `Release` that only a ledger opens.

    Noise is drawn and added in float64, and the result is rounded to multiples of about `2**-20` times the scale: the
    low bits of noise drawn in floating point can reveal the value under it (Mironov, 2012). This is a mitigation, not
    a proof.
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
