"""The model that a run reports: the last one, or an average of all rounds' models."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from torch import Tensor

from fedpriv.settings.checks import Bound, NonNegative, Ratio, validate_arguments


@validate_arguments("strategy.output")
@dataclass(frozen=True)
class Last:
    """Reports the model of the last round (the default of strategies).

    Examples:
        >>> import fedpriv
        >>> fedpriv.fedavg(0.1).output
        Last()
    """

    def init(self, received: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """Returns the received model."""
        return received, state


@dataclass(frozen=True)
class RunningAverage:
    """The weighted average of the rounds so far.

    Attributes:
        average: `[n, dim]`, or `[1, dim]` if all rows are equal.
        weight: Sum of the weights, `[]`.
        round: Rounds averaged, `[]`.
    """

    average: Tensor
    weight: Tensor
    round: Tensor


@validate_arguments("strategy.average")
@dataclass(frozen=True)
class Averaged:
    """Reports the average of all rounds' models, with weight `t**power` in round `t` = 1, 2, ...

    It is computed from released models, so it costs no epsilon.

    Args:
        power: Power of the weights. 0 (default) is Polyak-Ruppert averaging; larger powers give the first rounds less
            weight (Shamir and Zhang, 2013, polynomial-decay averaging).

    Examples:
        >>> import fedpriv
        >>> fedpriv.fedavg(0.1, average=2.0).output
        Averaged(power=2.0)
    """

    power: NonNegative = 0.0

    def init(self, received: Tensor) -> RunningAverage:
        """Returns an empty average."""
        return RunningAverage(received[:1] * 0, received.new_zeros(()), received.new_zeros(()))

    def __call__(self, received: Tensor, state: RunningAverage) -> tuple[Tensor, RunningAverage]:
        """Adds a round. If all rows are one expanded row (as with a server), the average is one row."""
        if received.stride(0) == 0:
            received = received[:1]
        round_number = state.round + 1
        share = round_number**self.power
        weight = state.weight + share
        average = state.average + (share / weight) * (received - state.average)
        return average, RunningAverage(average, weight, round_number)


@dataclass(frozen=True)
class Following:
    """The moving average of the rounds so far.

    Attributes:
        average: `[n, dim]`, or `[1, dim]` if all rows are equal.
        round: Rounds so far.
    """

    average: Tensor
    round: int


@validate_arguments("strategy.average")
@dataclass(frozen=True)
class Ema:
    """Reports the exponential moving average of all rounds' models, `e = decay e + (1 - decay) x`.

    It is computed from released models, so it costs no epsilon. It equals torch's `AveragedModel` with
    `get_ema_avg_fn`.

    Args:
        decay: Weight of the earlier average, in (0, 1); 0.99 by default.

    Examples:
        >>> import fedpriv
        >>> fedpriv.fedavg(0.1, average=fedpriv.Ema(0.9)).output
        Ema(decay=0.9)
    """

    decay: Ratio = 0.99

    def init(self, received: Tensor) -> Following:
        """Returns an empty average."""
        return Following(received[:1] * 0, 0)

    def __call__(self, received: Tensor, state: Following) -> tuple[Tensor, Following]:
        """Adds a round. If all rows are one expanded row (as with a server), the average is one row."""
        if received.stride(0) == 0:
            received = received[:1]
        if state.round:
            average = state.average + (1 - self.decay) * (received - state.average)
        else:
            average = received.clone()
        return average, Following(average, state.round + 1)


@dataclass(frozen=True)
class OrEma(Bound):
    """A number in the interval, or an `Ema`."""

    def describe_error(self, kind: object, value: object) -> str | None:
        """See `Bound`; accepts any `Ema`."""
        if isinstance(value, Ema):
            return None
        return super().describe_error(float, value)


Average = Annotated[float | Ema, OrEma("must be a finite number, at least 0", 0, inf, "[)")]
"""The average to report: with weights `t**p` for a number p, or `Ema(decay)`."""


def choose_output(average: float | Ema | None) -> Last | Averaged | Ema:
    """Returns the output for the option `average` of a strategy: the last model for None; else see `Average`."""
    if average is None:
        return Last()
    if isinstance(average, Ema):
        return average
    return Averaged(average)


@dataclass(frozen=True)
class Consensus:
    """Reports the server's model, without the other numbers of its broadcast."""

    extras: int = 2

    def init(self, received: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """Returns all columns but the last `extras`."""
        return received[:1, : -self.extras], state
