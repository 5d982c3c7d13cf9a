"""Functions shared by augmented Lagrangian methods: multipliers, tolerances, and the stopping rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedpriv.settings.checks import Positive, validate_arguments

STALLED = 15  # outer rounds without one per cent less violation end a run


@runtime_checkable
class HasMultipliers(Protocol):
    """State of a client update with multipliers, from which a run reports the constraints."""

    @property
    def multipliers(self) -> Tensor:
        """Multipliers of each client, `[n, m]`, for the mean objective."""
        ...


@runtime_checkable
class Measured(HasMultipliers, Protocol):
    """State of a client update with multipliers and private constraint values."""

    @property
    def measured(self) -> Tensor:
        """The newest constraint values of each client, `[n, m]`."""
        ...


@runtime_checkable
class Remeasures(Protocol):
    """State of the aggregator in a run that measures the reported model in its last round."""

    @property
    def measurements(self) -> int:
        """Number of measurements of the reported model's constraint values; 0 before the last round."""
        ...


@runtime_checkable
class Loops(Protocol):
    """State of an aggregator with an outer and an inner loop, which can end the run."""

    @property
    def done(self) -> bool:
        """True if the run is over."""
        ...

    @property
    def converged(self) -> bool:
        """True if the stopping rule was met."""
        ...

    @property
    def outer(self) -> int:
        """Outer rounds."""
        ...

    @property
    def inner_total(self) -> int:
        """Rounds of all inner loops."""
        ...


@validate_arguments("strategy")
@dataclass(frozen=True)
class Outer:
    """Parameters of the outer loop and its stopping rule (He, Peng and Sun, 2024, eq 11).

    Args:
        beta: Penalty parameter, which is also the step size of the multipliers.
        tolerance: `s`: outer round k = 0, 1, ... is solved to the tolerance `tau_k = s / (k + 1)^2`.
        stationarity: `eps_1`: the loop can stop when the gradient of the Lagrangian is at most about this large.
        feasibility: `eps_2`: the loop can stop when constraints are violated by at most about this much. It stops when
            both conditions hold.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Outer(tolerance=1e-2).tau(1)
        0.0025
    """

    beta: Positive = 10.0
    tolerance: Positive = 1e-3
    stationarity: Positive = 1e-3
    feasibility: Positive = 1e-3

    def tau(self, k: int) -> float:
        """Returns the tolerance of outer round k."""
        return self.tolerance / (k + 1) ** 2

    def stops(self, k: int, moved: float, change: float) -> bool:
        """Returns True if `moved + beta tau_k <= beta eps_1` and `change <= beta eps_2`, eq 11.

        Args:
            k: The outer round.
            moved: `||w^{k+1} - w^k||_inf`.
            change: `max_i ||mu_i^{k+1} - mu_i^k||_inf`.
        """
        still = moved + self.beta * self.tau(k) <= self.beta * self.stationarity
        return still and change <= self.beta * self.feasibility

    def stalls(self, rounds: int, least: float, violation: float) -> tuple[int, float]:
        """Counts consecutive outer rounds in which the violation did not fall by one per cent. Many such rounds mean
        that the method makes no progress.

        Args:
            rounds: Number of outer rounds without progress before this round.
            least: Violation of the last round with progress.
            violation: Violation of this round.

        Returns:
            Number of outer rounds without progress, including this round, and the violation with which the next round
            is compared.
        """
        if violation <= max(0.99 * least, 10 * self.feasibility):
            return 0, violation
        return rounds + 1, least


def update_multipliers(multipliers: Tensor, values: Tensor, beta: float, equality: Tensor) -> Tensor:
    """Returns `[mu + beta c]_+`, without `[.]_+` for equalities: `[k, m]`."""
    moved = multipliers + beta * values
    return moved.where(equality, moved.clamp_min(0))


def compute_penalty(multipliers: Tensor, values: Tensor, beta: float, equality: Tensor) -> Tensor:
    """Returns `(||[mu + beta c]_+||^2 - ||mu||^2) / (2 beta)`: `[k, m] -> [k]`."""
    return (update_multipliers(multipliers, values, beta, equality).square() - multipliers.square()).sum(1) / (2 * beta)


def compute_violations(values: Tensor, equality: Tensor) -> Tensor:
    """Returns the distance of values from `c <= 0`, or from `c = 0` for equalities: `[k, m]`, at least 0."""
    return values.abs().where(equality, values.clamp_min(0))


def compute_largest(values: Tensor) -> Tensor:
    """Returns the largest absolute value of each row, 0 for an empty row: `[k, m] -> [k]`."""
    if values.shape[1]:
        return values.abs().amax(1)
    return values.new_zeros(len(values))
