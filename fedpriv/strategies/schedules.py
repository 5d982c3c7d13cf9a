"""Step sizes of rounds t = 1, 2, ...: a number, one of these schedules, or a function of the round.

Every strategy accepts them in the same way. Step sizes are public, so a schedule must not depend on data. `Penalty` is
the sequence of ADMM's penalty parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Annotated

from fedpriv.errors import ConfigError, summarize_error, truncate
from fedpriv.settings.checks import (
    Bound,
    Count,
    Finite,
    NonNegative,
    Positive,
    PositiveOrInfinite,
    Probability,
    Whole,
    validate_arguments,
)
from fedpriv.strategies.state import Rounds

_LARGEST_POWER = 10.0  # of a round's number; the powers are floats for any number of rounds


@dataclass(frozen=True)
class OrFunction(Bound):
    """A number in the interval, or a function of the round."""

    def describe_error(self, kind: object, value: object) -> str | None:
        """See `Bound`. Any function is accepted; its values are checked when it is called."""
        if callable(value):
            return None
        return super().describe_error(float, value)


Number = float | Callable[[int], float]
Rate = Annotated[Number, OrFunction("must be a positive, finite number", 0)]
"""A step size: a number, or a function from the round t = 1, 2, ... to a number, such as `Cosine(0.5, 100)`."""
RateOrInfinite = Annotated[Number, OrFunction("must be a positive number, or inf", 0, math.inf, "(]")]
"""Like `Rate`, but the value may be inf, which leaves out the term with this rate."""
PenaltyRate = Annotated[Number, OrFunction("must be a positive, finite number", 0), "penalty"]
"""ADMM's penalty parameter: `Penalty(...)`, or anything that a step size may be."""


def evaluate_rate(rate: Number, t: int) -> float:
    """Returns the value of a rate in round `t` = 1, 2, ...

    Raises:
        ConfigError: If a function fails, or returns no finite number of at least 0.
    """
    value = evaluate_rate_or_infinite(rate, t)
    if math.isinf(value):
        raise _wrong(rate, f"returns {value} in round {t}: it must be finite")
    return value


def evaluate_rate_or_infinite(rate: Number, t: int) -> float:
    """Like `evaluate_rate`, but the value may be infinite."""
    if not callable(rate):
        return rate
    try:
        value = rate(t)
    except (ArithmeticError, ConfigError):
        raise  # from fedpriv's schedules: the error is in their parameters, not in a user's function
    except Exception as error:  # a user's function can raise anything
        raise _wrong(
            rate, f"raises an error in round {t} ({summarize_error(error)}): it must return a number for every round"
        ) from error
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:
        raise _wrong(rate, f"returns {truncate(repr(value))} in round {t}: it must be a number of at least 0")
    return float(value)


def init_round_counter(*rates: Number) -> Rounds | None:
    """Returns a counter of rounds for a state that uses these rates; None if all are constant."""
    if any(map(callable, rates)):
        return Rounds(0)
    return None


def advance_round(clock: Rounds | None) -> tuple[int, Rounds | None]:
    """Returns the number of the round, from 1, and the next counter. Without a counter, the number is always 1."""
    if clock is None:
        return 1, None
    return clock.t + 1, Rounds(clock.t + 1)


def _wrong(rate: Number, fix: str) -> ConfigError:
    return ConfigError("strategy.schedule", getattr(rate, "__name__", rate), fix)


@validate_arguments("strategy.step_size")
@dataclass(frozen=True)
class StepSize:
    """Step size `scale * ratio**(t - 1) / t**power` of round `t` = 1, 2, ...: constant, polynomial or geometric.

    Args:
        scale: Step size of round 1; 1 by default.
        power: Power of the polynomial decay; 0 (default) for none.
        ratio: Ratio of geometric steps; 1 (default) for none.

    Examples:
        >>> import fedpriv
        >>> step_size = fedpriv.StepSize(0.5, power=1.0)
        >>> step_size(1), step_size(5)
        (0.5, 0.1)
    """

    scale: Positive = 1.0
    power: Finite = 0.0
    ratio: Positive = 1.0

    def __call__(self, t: int) -> float:
        """Returns the step size of round `t`, from 1."""
        return self.scale * self.ratio ** (t - 1) / t**self.power


def period_of(rate: Number) -> int | None:
    """Returns the period of a local step that makes one query in each round; see `PeriodicQueries`.

    The period is 1 for numbers, and for step sizes that are finite in every round. It is None for other functions,
    which may fail in a later round.
    """
    if isinstance(rate, StepSize):
        never_fails = rate.ratio <= 1 and 0 <= rate.power <= _LARGEST_POWER
    else:
        never_fails = not callable(rate)
    return 1 if never_fails else None


@validate_arguments("strategy.schedule")
@dataclass(frozen=True)
class Cosine:
    """Falls from `peak` to `floor` along half a cosine (Loshchilov and Hutter, 2017), after a linear warm-up.

    `floor + (peak - floor) (1 + cos(pi u)) / 2` with `u = (t - 1 - warmup) / (rounds - warmup)`, so that the last round
    still has a step. Later rounds have the value of round `rounds`.

    Args:
        peak: Largest value.
        rounds: Number of rounds of the run.
        floor: Value at the end of the cosine; 0 by default.
        warmup: Number of warm-up rounds at the start, 0 by default; see `Warmup`.

    Raises:
        ConfigError: If the warm-up does not end before the run ends.

    Examples:
        >>> import fedpriv
        >>> schedule = fedpriv.Cosine(peak=1.0, rounds=4)
        >>> [round(schedule(t), 3) for t in (1, 2, 3, 4)]
        [1.0, 0.854, 0.5, 0.146]
    """

    peak: Positive
    rounds: Count
    floor: NonNegative = 0.0
    warmup: Whole = 0

    def __post_init__(self) -> None:
        if self.warmup >= self.rounds:
            raise ConfigError("strategy.schedule.warmup", self.warmup, f"must be less than rounds = {self.rounds}")

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`, from 1."""
        if t <= self.warmup:
            return Warmup(self.peak, self.warmup)(t)
        progress = (min(t, self.rounds) - 1 - self.warmup) / (self.rounds - self.warmup)
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * progress)) / 2


@validate_arguments("strategy.schedule")
@dataclass(frozen=True)
class Warmup:
    """Rises linearly, `peak t / rounds`, and stays at `peak` from round `rounds` on.

    Args:
        peak: Largest value; positive.
        rounds: Number of rounds until the peak is reached.

    Examples:
        >>> import fedpriv
        >>> [fedpriv.Warmup(peak=0.4, rounds=4)(t) for t in (1, 2, 4, 9)]
        [0.1, 0.2, 0.4, 0.4]
    """

    peak: Positive
    rounds: Count

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`, from 1."""
        return self.peak * min(t, self.rounds) / self.rounds


@validate_arguments("strategy.schedule")
@dataclass(frozen=True)
class Steps:
    """Starts at `start` and is multiplied by `factor` after every `every` rounds.

    Args:
        start: First value; positive.
        every: Number of rounds between two changes.
        factor: Factor of a change, in (0, 1]; 0.1 by default.

    Examples:
        >>> import fedpriv
        >>> [fedpriv.Steps(start=0.8, every=10, factor=0.5)(t) for t in (1, 10, 11)]
        [0.8, 0.8, 0.4]
    """

    start: Positive
    every: Count
    factor: Probability = 0.1

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`, from 1."""
        return self.start * self.factor ** ((t - 1) // self.every)


@validate_arguments("strategy.eta")
@dataclass(frozen=True)
class Decay:
    """Polynomial decay `scale / t**power` in round `t` = 1, 2, ...

    Args:
        scale: Value of round 1, 1 by default. An infinite step size (`inf`) leaves out the step term.
        power: Power of the decay; 0.5 by default.

    Examples:
        >>> import fedpriv
        >>> [fedpriv.Decay(scale=1.0, power=0.5)(t) for t in (1, 4)]
        [1.0, 0.5]
    """

    scale: PositiveOrInfinite = 1.0
    power: Finite = 0.5

    def __call__(self, t: int) -> float:
        """Returns the value in round `t` = 1, 2, ..."""
        return self.scale / t**self.power


@validate_arguments("strategy.rho")
@dataclass(frozen=True)
class Penalty:
    """Penalty parameter `rho_t = min(1e9, scale * growth**floor(t / period) + offset)`, eq 21 of Ryu and Kim (2022).

    Args:
        scale: The term that grows; 2 by default.
        offset: The constant term, 0 by default; `scale` or `offset` must be positive.
        growth: Factor by which `scale` grows after each period; 1 (default) keeps `rho_t` constant.
        period: Number of rounds of a period; 10 000 by default.

    Examples:
        >>> import fedpriv
        >>> [fedpriv.Penalty(scale=2.0, growth=1.5, period=10)(t) for t in (1, 10)]
        [2.0, 3.0]
    """

    scale: NonNegative = 2.0
    offset: NonNegative = 0.0
    growth: Positive = 1.0
    period: Positive = 1e4

    def __post_init__(self) -> None:
        if not self.scale + self.offset > 0:
            raise ConfigError("strategy.rho", self, "scale or offset must be positive")

    def __call__(self, t: int) -> float:
        """Returns `rho_t` for round `t` = 1, 2, ..."""
        return min(1e9, self.scale * self.growth ** (t // self.period) + self.offset)
