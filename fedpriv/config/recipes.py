"""What a strategy's builder gives to a configuration, and a row of the table of strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.plugins import Entry
from fedpriv.privacy.as_published import Published
from fedpriv.privacy.claims import Claim, NoiseClaim
from fedpriv.privacy.schedules import Schedule
from fedpriv.strategies.base import Strategy


@dataclass(frozen=True)
class Recipe:
    """A strategy and what it asks of the noise.

    Attributes:
        strategy: The algorithm.
        schedule: How the algorithm shares the budget over rounds, where that is part of it.
        published: As-published noise (not private).
        claim: What the paper claims of this very run, at a delta, where its entry cannot tell.
    """

    strategy: Strategy
    schedule: Schedule | None = None
    published: Published | None = None
    claim: Callable[[float], Claim] | None = None


@dataclass(frozen=True)
class StrategyEntry(Entry[Strategy | Recipe]):
    """One row.

    Args:
        build: Makes the sound variant from typed keyword options.
        description: One line for `fedpriv list`.
        published: Makes the variant that the paper publishes, from its own options.
        claim: What the paper claims of it, from (epsilon_bar, rounds, delta), and what that amounts to.
        formula: What the paper would call a noise, from (its deviation over the clip, rounds, examples of a client,
            active fraction), when one example a round is drawn.
    """

    published: Callable[..., Recipe] | None = None
    claim: Callable[[float, int, float], Claim] | None = None
    formula: Callable[[float, int, int, float], NoiseClaim] | None = None
