"""The division of the privacy budget over the rounds of a run.

A schedule gives round `k` a relative share `s_k > 0`; the noise multiplier of that round is `base / s_k`. Only the
ratios of shares matter, because `base` is computed from the target epsilon. Shares are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

from fedpriv.errors import ConfigError, summarize_error, truncate
from fedpriv.settings.checks import Positive, validate_arguments

LEAST_SHARE = 1e-100  # only ratios matter, and the square of a smaller one is 0


class Schedule(Protocol):
    """Gives each round its relative share of the privacy budget."""

    def share(self, round_index: int) -> float:
        """Returns the positive share of round `round_index` (from 0)."""
        ...


@validate_arguments("privacy.schedule")
@dataclass(frozen=True)
class Uniform:
    """The same share of the privacy budget for every round (the default).

    Examples:
        >>> import fedpriv
        >>> fedpriv.Uniform().share(0), fedpriv.Uniform().share(9)
        (1.0, 1.0)
    """

    def share(self, round_index: int) -> float:
        """Returns 1."""
        return 1.0


@validate_arguments("privacy.schedule")
@dataclass(frozen=True)
class Geometric:
    """Relative shares `ratio**k` of the privacy budget for rounds k = 0, 1, ...

    With `ratio < 1` the noise grows from round to round, and infinitely many rounds have a finite total cost.
    `Geometric(q1 / q2)` is the schedule of Xie, Liu, Chai (2025), written as noise on the gradient.

    Args:
        ratio: Share of a round divided by the share of the previous round; positive.

    Examples:
        >>> import fedpriv
        >>> [fedpriv.Geometric(0.5).share(k) for k in range(3)]
        [1.0, 0.5, 0.25]
    """

    ratio: Positive

    def share(self, round_index: int) -> float:
        """Returns `ratio**round_index`."""
        return self.ratio**round_index

    def noise_multiplier(self, epsilon: float, rounds: float = math.inf) -> float:
        """Returns the multiplier with which Laplace noise spends exactly `epsilon` (delta 0) over `rounds` rounds.

        Args:
            epsilon: Total of all rounds.
            rounds: Number of rounds; an infinite number needs `ratio < 1`.

        Raises:
            ConfigError: If the total cost is infinite.
        """
        if math.isinf(rounds) and self.ratio >= 1:
            raise ConfigError("rounds", rounds, "an infinite number of rounds needs a ratio below 1")
        if self.ratio == 1:
            shares = rounds
        else:
            shares = (1 - self.ratio**rounds) / (1 - self.ratio)
        return shares / epsilon


@validate_arguments("privacy.schedule")
@dataclass(frozen=True)
class Custom:
    """Shares of the privacy budget from a function of the round. The function must not depend on data.

    Args:
        function: Maps the round, from 0, to a positive number.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Custom(lambda round_index: 1.0 + round_index).share(2)
        3.0
    """

    function: Callable[[int], float]

    def share(self, round_index: int) -> float:
        """Returns the function's share.

        Raises:
            ConfigError: If the function fails, or does not return a positive number.
        """
        try:
            share = _number(self.function(round_index))
        except Exception as error:  # a user's function can raise anything
            fix = (
                f"the function raises an error in round {round_index} ({summarize_error(error)}): it must return a "
                "share"
            )
            raise ConfigError("privacy.schedule.function", self.function, fix) from error
        if not LEAST_SHARE <= share <= 1 / LEAST_SHARE:
            fix = f"the share of round {round_index} must be a number from {LEAST_SHARE:g} to {1 / LEAST_SHARE:g}"
            raise ConfigError("privacy.schedule.function", share, fix)
        return share


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{truncate(repr(value))} is not a number")
    return float(value)
