"""Which model a run reports: the last, or an average (Polyak and Juditsky, 1992; Shamir and Zhang, 2013)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpriv.checks import NonNegative, checked


@dataclass(frozen=True)
class Last:
    """Report the model of the last round."""

    def init(self, received: Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """Return what was received."""
        return received, state


@dataclass(frozen=True)
class RunningAverage:
    """A weighted average so far.

    Attributes:
        average: `[n, dim]`, or `[1, dim]` if all rows are equal.
        weight: Sum of the weights, `[]`.
        round: Rounds averaged, `[]`.
    """

    average: Tensor
    weight: Tensor
    round: Tensor


@checked("strategy.average")
@dataclass(frozen=True)
class Averaged:
    """Report the average of all rounds' models, with weight `t**power` in round `t` = 1, 2, ...

    It is computed from released models, so it costs no epsilon. `power = 0` is Polyak-Ruppert averaging; larger powers
    forget the first rounds faster (Shamir and Zhang, 2013, polynomial-decay averaging).
    """

    power: NonNegative = 0.0

    def init(self, received: Tensor) -> RunningAverage:
        """Nothing averaged yet."""
        return RunningAverage(received[:1] * 0, received.new_zeros(()), received.new_zeros(()))

    def __call__(self, received: Tensor, state: RunningAverage) -> tuple[Tensor, RunningAverage]:
        """Add a round. Rows that are one expanded row (as with a server) stay one."""
        received = received[:1] if received.stride(0) == 0 else received
        round_number = state.round + 1
        share = round_number**self.power
        weight = state.weight + share
        average = state.average + (share / weight) * (received - state.average)
        return average, RunningAverage(average, weight, round_number)


def last_or_average(average: float | None) -> Last | Averaged:
    """What the option `average` of a strategy means: None the last model, a number p an average by `t**p`."""
    return Last() if average is None else Averaged(average)


@dataclass(frozen=True)
class Consensus:
    """Report the server's model, without the numbers that it broadcasts beside it."""

    extras: int = 2

    def init(self, received: Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: Tensor, state: None) -> tuple[Tensor, None]:
        """All columns but the last."""
        return received[:1, : -self.extras], state
