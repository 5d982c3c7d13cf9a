"""A strategy, and what comes with it that a strategy itself does not know: its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.privacy.as_published import Published
from fedpriv.privacy.claims import Claim
from fedpriv.privacy.schedules import Schedule
from fedpriv.strategies.base import Strategy


@dataclass(frozen=True)
class Recipe:
    """A strategy and what it asks of the noise.

    Attributes:
        strategy: The algorithm.
        schedule: How the algorithm shares the budget over rounds, where that is part of it.
        published: As-published noise (not private).
        claim: What the paper claims of this very run, at a delta.
    """

    strategy: Strategy
    schedule: Schedule | None = None
    published: Published | None = None
    claim: Callable[[float], Claim] | None = None
