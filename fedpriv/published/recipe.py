"""A strategy together with the noise schedule or published noise that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.privacy.as_published import Published
from fedpriv.privacy.claims import Claim
from fedpriv.privacy.schedules import Schedule
from fedpriv.strategies.base import Strategy


@dataclass(frozen=True)
class Recipe:
    """A strategy and its noise.

    Attributes:
        strategy: The algorithm.
        schedule: How the algorithm shares the budget over rounds; None leaves it to the privacy settings.
        published: Noise as the paper publishes it (not private), if any.
        claim: Gives the paper's privacy claim for this run, from a delta.
    """

    strategy: Strategy
    schedule: Schedule | None = None
    published: Published | None = None
    claim: Callable[[float], Claim] | None = None
