"""Step sizes of rounds t = 1, 2, ...: a number, one of these schedules, or the user's own function of the round.

Every strategy takes them in the same way. They are public: a schedule must not look at data. `Penalty` is the sequence
of ADMM's penalty parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Annotated

from fedpriv.errors import ConfigError, cut, in_short
from fedpriv.settings.checks import (
    Bound,
    Count,
    Finite,
    NonNegative,
    Positive,
    PositiveOrInfinite,
    Probability,
    Whole,
    checked,
)
from fedpriv.strategies.state import Rounds

_LARGEST_POWER = 10.0  # of a round's number; the powers are floats for any number of rounds


@dataclass(frozen=True)
class OrFunction(Bound):
    """A number in the interval, or a function of the round."""

    def complaint(self, kind: object, value: object) -> str | None:
        """See `Bound`; accepts any function, whose values are checked when it is called."""
        if callable(value):
            return None
        return super().complaint(float, value)


Number = float | Callable[[int], float]
Rate = Annotated[Number, OrFunction("must be a positive, finite number", 0)]
"""A step size: a number, or a function from the round t = 1, 2, ... to a number, such as `Cosine(0.5, 100)`."""
RateOrInfinite = Annotated[Number, OrFunction("must be a positive number, or inf", 0, math.inf, "(]")]
"""Like `Rate`, but may be inf, which leaves out the term that it belongs to."""
PenaltyRate = Annotated[Number, OrFunction("must be a positive, finite number", 0), "penalty"]
"""ADMM's penalty parameter: `Penalty(...)`, or anything that a step size may be."""


def in_round(rate: Number, t: int) -> float:
    """Returns the value of a rate in round `t` = 1, 2, ...

    Raises:
        ConfigError: a function fails, or returns no finite number of at least 0.
    """
    value = in_round_or_infinite(rate, t)
    if math.isinf(value):
        raise _wrong(rate, f"gives {value} in round {t}: it must be finite")
    return value


def in_round_or_infinite(rate: Number, t: int) -> float:
    """Like `in_round`, but the value may be infinite."""
    if not callable(rate):
        return rate
    try:
        value = rate(t)
    except (ArithmeticError, ConfigError):
        raise  # from fedpriv's schedules: the error is in their parameters, not in a user's function
    except Exception as error:  # whatever a user's function raises
        raise _wrong(rate, f"fails in round {t} ({in_short(error)})") from error
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:
        raise _wrong(rate, f"gives {cut(repr(value))} in round {t}: it must be a number of at least 0")
    return float(value)


def clock(*rates: Number) -> Rounds | None:
    """Returns a counter of rounds for a state that uses these rates; None if all are constant."""
    if any(map(callable, rates)):
        return Rounds(0)
    return None


def ticked(clock: Rounds | None) -> tuple[int, Rounds | None]:
    """Returns the number of the round that begins, from 1, and the next clock; 1 in every round without a clock."""
    if clock is None:
        return 1, None
    return clock.t + 1, Rounds(clock.t + 1)


def _wrong(rate: Number, fix: str) -> ConfigError:
    return ConfigError("strategy.schedule", getattr(rate, "__name__", rate), fix)


@checked("strategy.step_size")
@dataclass(frozen=True)
class StepSize:
    """Step size `scale * ratio**(t - 1) / t**power` of round `t` = 1, 2, ...: constant, polynomial or geometric."""

    scale: Positive = 1.0
    power: Finite = 0.0
    ratio: Positive = 1.0

    def __call__(self, t: int) -> float:
        """Returns the step size of round `t`, from 1."""
        return self.scale * self.ratio ** (t - 1) / t**self.power


def period_of(rate: Number) -> int | None:
    """Returns the period of a local step that makes one query in each round; see `PeriodicQueries`.

    It is 1 for numbers, and for step sizes that are finite in every round. None for other functions, which may fail.
    """
    if isinstance(rate, StepSize):
        never_fails = rate.ratio <= 1 and 0 <= rate.power <= _LARGEST_POWER
    else:
        never_fails = not callable(rate)
    return 1 if never_fails else None


@checked("strategy.schedule")
@dataclass(frozen=True)
class Cosine:
    """Falls from `peak` to `floor` along half a cosine (Loshchilov and Hutter, 2017), after a linear warm-up.

    `floor + (peak - floor) (1 + cos(pi u)) / 2` with `u = (t - 1 - warmup) / (rounds - warmup)`, so that the last round
    still has a step. Later rounds have the value of round `rounds`.

    Args:
        peak: Largest value.
        rounds: Rounds of the run.
        floor: Value towards which it falls.
        warmup: Rounds of the warm-up before; see `Warmup`.

    Raises:
        ConfigError: the warm-up does not end before the run does.
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


@checked("strategy.schedule")
@dataclass(frozen=True)
class Warmup:
    """Rises linearly, `peak t / rounds`, and stays at `peak` from round `rounds` on."""

    peak: Positive
    rounds: Count

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`, from 1."""
        return self.peak * min(t, self.rounds) / self.rounds


@checked("strategy.schedule")
@dataclass(frozen=True)
class Steps:
    """Starts at `start` and is multiplied by `factor` after every `every` rounds."""

    start: Positive
    every: Count
    factor: Probability = 0.1

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`, from 1."""
        return self.start * self.factor ** ((t - 1) // self.every)


@checked("strategy.eta")
@dataclass(frozen=True)
class Decay:
    """A positive sequence `scale / t**power`, `t` = 1, 2, ...; `scale = inf` leaves out the term it belongs to."""

    scale: PositiveOrInfinite = 1.0
    power: Finite = 0.5

    def __call__(self, t: int) -> float:
        """Returns the value in round `t` = 1, 2, ..."""
        return self.scale / t**self.power


@checked("strategy.rho")
@dataclass(frozen=True)
class Penalty:
    """Penalty parameter `rho_t = min(1e9, scale * growth**floor(t / period) + offset)`, eq 21 of Ryu and Kim (2022).

    Args:
        scale: The term that grows.
        offset: A constant term; one of the two is positive.
        growth: Factor by which `scale` grows after each period; 1 keeps `rho_t` constant.
        period: Rounds of a period.
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
