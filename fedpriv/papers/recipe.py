"""A strategy together with its noise schedule or published noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.forecast.forecasting import Formula
from fedpriv.papers.claims import Claim
from fedpriv.papers.published import Published
from fedpriv.privacy import Schedule
from fedpriv.strategies import Strategy


@dataclass(frozen=True)
class Recipe:
    """A strategy and its noise.

    Attributes:
        strategy: The algorithm.
        schedule: The algorithm's division of the budget over rounds; None leaves it to the privacy settings.
        published: Noise as published in the paper (not private), if any.
        claim: Returns the paper's privacy claim for this run, from a delta.
    """

    strategy: Strategy
    schedule: Schedule | None = None
    published: Published | None = None
    claim: Callable[[float], Claim] | None = None

    def claimed(self, delta: float) -> Claim | None:
        """The claim; None if there is none, or if there is no noise for it."""
        if self.claim is None or self.published is None or math.isinf(self.published.epsilon_bar):
            return None
        return self.claim(delta)


@dataclass(frozen=True)
class Variants:
    """A paper's additions to an algorithm with a registered name.

    Attributes:
        published: Creates the variant that the paper publishes, from its own options; None if there is none.
        after: Requirements of the algorithm on the noise.
        formula: Computes the paper's epsilon for a noise, if one example a round is drawn.
    """

    published: Callable[..., Recipe] | None = None
    after: Callable[[Strategy], Recipe] = Recipe
    formula: Formula | None = None
