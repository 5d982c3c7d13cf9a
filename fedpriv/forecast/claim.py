"""A paper's privacy claim and its true privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.errors import ConfigError


@dataclass(frozen=True)
class Claim:
    """A paper's privacy claim, and the guarantee of its noise over the whole run.

    Attributes:
        paper: Author and year.
        stated: The guarantee in the paper's words and symbols.
        stated_epsilon: The epsilon that the paper prints.
        basic_total: Epsilon of the whole run by basic composition: the sum over rounds.
        tight_total: Epsilon of the whole run by the tightest bound, at the requested delta.
        why_not: Reason why the published mechanism does not guarantee even that; empty if it does.
        scope: Scope of the paper's epsilon, e.g. a single round.
        views: Pairs (adversary and relation, epsilon): the same noise against other observers or relations.
    """

    paper: str
    stated: str
    stated_epsilon: float
    basic_total: float
    tight_total: float
    why_not: str
    scope: str = "one round"
    views: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class NoiseClaim:
    """The epsilon that a paper's noise formula would state for the noise of a run.

    Attributes:
        paper: Author, year and equation.
        stated_epsilon: The epsilon with which the formula gives this noise.
        assumes: The formula's other arguments.
    """

    paper: str
    stated_epsilon: float
    assumes: str


def check_positive(**values: float) -> None:
    """Raises an error for arguments that are not positive and finite."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(name, value, "must be a positive, finite number")
