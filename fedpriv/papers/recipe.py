"""A strategy together with the noise schedule or published noise that belongs to it."""

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
        schedule: How the algorithm shares the budget over rounds; None leaves it to the privacy settings.
        published: Noise as the paper publishes it (not private), if any.
        claim: Gives the paper's privacy claim for this run, from a delta.
    """

    strategy: Strategy
    schedule: Schedule | None = None
    published: Published | None = None
    claim: Callable[[float], Claim] | None = None

    def claimed(self, delta: float) -> Claim | None:
        """The claim; None where there is none, or no noise of which it could be one."""
        if self.claim is None or self.published is None or math.isinf(self.published.epsilon_bar):
            return None
        return self.claim(delta)


@dataclass(frozen=True)
class Variants:
    """What a paper adds to an algorithm that has a name.

    Attributes:
        published: Makes the variant that the paper publishes, from its own options; None if there is none.
        after: What the algorithm itself asks of the noise.
        formula: What the paper would call a noise, when one example a round is drawn.
    """

    published: Callable[..., Recipe] | None = None
    after: Callable[[Strategy], Recipe] = Recipe
    formula: Formula | None = None
