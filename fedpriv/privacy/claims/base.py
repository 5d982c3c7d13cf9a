"""What a claim says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.errors import ConfigError


@dataclass(frozen=True)
class Claim:
    """A paper's privacy claim, completed.

    Attributes:
        paper: Author and year.
        stated: The guarantee in the paper's words and symbols.
        stated_epsilon: The epsilon that the paper prints.
        basic_total: Epsilon of the whole run by basic composition, delta 0.
        tight_total: Epsilon of the whole run by the tightest bound, at the delta asked for.
        why_not: Why the published mechanism does not give even that; empty when it does.
        scope: What the paper's epsilon is about.
        views: Further prices of the same noise, each with its adversary and its neighbours.
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
    """What a paper's formula for the noise would call the noise of a run.

    Attributes:
        paper: Author, year, where.
        stated_epsilon: The epsilon that the formula belongs to.
        assumes: Its further arguments.
    """

    paper: str
    stated_epsilon: float
    assumes: str


def check_positive(**values: float) -> None:
    """Refuse arguments that are not positive and finite."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(name, value, "must be positive and finite")
