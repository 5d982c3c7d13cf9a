"""A private augmented Lagrangian: noisy constraint values, public multipliers, noisy gradients of the Lagrangian.

This is a private variant of the method of He, Peng and Sun (2024), whose messages reveal exact gradients and constraint
values. Each client makes two private queries a round, for a fixed number of rounds T; all other values are computed
from the results of these queries. Round t:

    c^_i  = private constraint values at w
    pi_i  = min([mu_i + beta c^_i]_+, pi_max)        public; for an equality within [-pi_max, pi_max]
    g~_i  = private gradient of f_i + <pi_i, c_i> at w
    mu_i  <- min([mu_i + beta c^_i]_+, pi_max)       from the same c^_i
    z_i   = argmin <g~_i, z> + ||z - w||^2 / (2 eta_t)
    w     = prox_h(mean_i z_i),  eta_t = eta / t**decay

The last round only measures c^_i, several times, at the weighted average of the w's, which is the reported model. No
decision depends on data, so T and the noise are known before the run. beta multiplies the noise of c^.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings import Bound, Count, NonNegative, Positive, RegistryEntry, validate_arguments
from fedpriv.strategies import (
    ConstraintNoise,
    Memory,
    Network,
    Oracle,
    Proximal,
    Rate,
    RunInfo,
    Strategy,
    Zero,
    evaluate_rate,
)


@dataclass(frozen=True)
class DualState:
    """A client's state.

    Attributes:
        multipliers: mu_i / n, for the mean objective, `[n, m]`.
        measured: The newest private constraint values, `[n, m]`.
        t: Rounds so far.
    """

    multipliers: Tensor
    measured: Tensor
    t: int


@dataclass(frozen=True)
class ScalarizedStep:
    """The client update.

    Args:
        rounds: T, including the measuring round; None until the run sets it.
        beta: Step size of the multipliers.
        largest: `pi_max`.
        learning_rate: `eta`.
        decay: `eta_t = eta / t**decay`.
        measurements: Number of measurements of the reported model's constraint values.
    """

    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("model", "constraint")
    memory: ClassVar[Memory] = "private"  # multipliers: functions of its query results, which need full noise
    linear: ClassVar[bool] = False  # multipliers are cut off

    rounds: int | None
    beta: float
    largest: float
    learning_rate: Rate
    decay: float
    measurements: int

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 2:
            raise ConfigError("rounds", self.rounds, _FIX)

    def init(self, params: Tensor) -> DualState:
        """Returns zero multipliers, in one column until the first query result shows the number of constraints."""
        rows = params.new_zeros(len(params), 1)
        return DualState(rows, rows, 0)

    def __call__(self, received: Tensor, state: DualState, oracle: Oracle) -> tuple[Tensor, DualState]:
        """Computes one round."""
        w = received
        t = state.t + 1
        if t == self.rounds:
            measured = torch.stack([oracle.statistic(w, "constraints") for _ in range(self.measurements)]).mean(0)
            return _append_worst(w, measured, oracle.equality), DualState(state.multipliers, measured, t)
        if self.rounds is not None and t > self.rounds:
            raise ConfigError(
                "rounds",
                t,
                f"exceeds the {self.rounds} rounds for which private_al was created: leave out its argument rounds, "
                "so that it uses the rounds of the run",
            )
        values = oracle.statistic(w, "constraints")
        # the state holds lambda / n, for the mean objective; the update works on lambda
        moved = oracle.n_clients * state.multipliers + self.beta * values
        lowest = torch.zeros_like(moved).where(~oracle.equality, -self.largest)
        clamped = moved.clamp(lowest, torch.full_like(moved, self.largest))
        gradient = oracle.lagrangian_gradient(w, clamped)
        z = w - evaluate_rate(self.learning_rate, t) / t**self.decay * gradient
        return _append_worst(z, values, oracle.equality), DualState(clamped / oracle.n_clients, values, t)

    def advice(self, run: RunInfo) -> list[str]:
        """Suggests a share of the budget for values that suits beta, and warns of a beta too large for their noise."""
        noise = run.constraints
        if noise is None:
            return []
        share = suggested_share(self.beta, noise)
        warnings: list[str] = []
        if share is not None:
            warnings.append(
                f"privacy.statistics.share = {share:.2g} gives a step the least noise (suggested: {share:.0%} of each "
                "round's privacy budget for constraint values)"
            )
        if self.beta * noise.deviation > self.largest / 10:
            warnings.append(
                f"beta = {self.beta:g} makes the multipliers mostly noise: the noise of one multiplier step has "
                f"standard deviation {self.beta * noise.deviation:.3g}, but a multiplier is at most {self.largest:g} "
                f"(max_multiplier); use a beta of at most {self.largest / 10 / noise.deviation:.2g}, a larger share "
                "for values, fewer rounds or more examples per client"
            )
        return warnings


def suggested_share(beta: float, noise: ConstraintNoise) -> float | None:
    """Returns the budget share of constraint values for which a step has the least noise; None if it is fixed.

    The noise of a step has two parts. The gradient's noise has squared norm `dim (clip / m)^2 / (1 - share)`. The noise
    of the multipliers is multiplied by a constraint's gradient, of norm at most about the clip:
    `(beta reach clip)^2 / share`. With numerators a^2
    and b^2 the sum is least at b / (a + b), and the clip cancels.
    """
    if noise.reach is None:
        return None
    gradient_noise = math.sqrt(noise.dim) / noise.examples
    value_noise = beta * noise.reach
    return value_noise / (gradient_noise + value_noise)


@dataclass(frozen=True)
class MeanState:
    """The server's state.

    Attributes:
        average: Weighted average of the w's, `[1, dim]`.
        weight: Sum of the weights, `[]`.
        t: Number of finished rounds.
        worst_estimate: The largest noisy value that a client reported in the newest round, `[]`.
        measurements: Number of measurements of the reported model's constraint values so far.
    """

    average: Tensor
    weight: Tensor
    t: int
    worst_estimate: Tensor
    measurements: int


@dataclass(frozen=True)
class ProximalMean:
    """`w = prox_h(mean z)` and the average of the w's with weights `t**power`, which the last round measures."""

    receives: ClassVar[tuple[str, ...]] = ("model", "constraint")
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = False

    rounds: int | None
    regularizer: Proximal
    learning_rate: Rate
    decay: float
    power: float
    measurements: int

    def init(self, params: Tensor) -> tuple[Tensor, MeanState]:
        """Starts all clients from the first client's model."""
        zero = params.new_zeros(())
        return params[:1].expand_as(params), MeanState(0 * params[:1], zero, 0, zero, 0)

    def __call__(self, message: Tensor, network: Network, state: MeanState) -> tuple[Tensor, MeanState]:
        """Computes w and the average; in the last round it sends the average, for the report."""
        rows = network.gather(message)
        t = state.t + 1
        z = rows[:, :-1]
        worst = rows[:, -1:]
        # the largest noisy value that a client reports, which a run shows after each round
        state = replace(state, t=t, worst_estimate=network.largest(worst)[0, 0])
        if t == self.rounds:
            state = replace(state, measurements=state.measurements + self.measurements)
            return network.scatter(state.average), state
        mean = network.total(z) / network.n_clients
        w = self.regularizer.prox(mean, evaluate_rate(self.learning_rate, t) / t**self.decay)
        weight = state.weight + t**self.power
        average = state.average + t**self.power / weight * (w - state.average)
        state = replace(state, average=average, weight=weight)
        # in the last round clients measure the average
        if t + 1 == self.rounds:
            return network.scatter(average), state
        return network.scatter(w), state


_FIX = "must be a whole number, at least 2, since the last round only measures the result"
Rounds = Annotated[int, Bound(_FIX, 2, inf, "[)")]


@validate_arguments("strategy")
def private_al(
    rounds: Rounds | None = None,
    *,
    regularizer: Proximal = Zero(),
    beta: Positive = 1.0,
    max_multiplier: Positive = 3.0,
    learning_rate: Rate = 1.0,
    decay: NonNegative = 0.5,
    average: NonNegative = 2.0,
    measurements: Count = 4,
) -> Strategy:
    """Creates a private augmented Lagrangian for training under constraints.

    It uses noisy gradients and noisy constraint values.

    Args:
        rounds: Number of rounds of the run; the last round only measures the result. None (default) uses the `rounds`
            of the run.
        regularizer: Convex h, added to the mean loss.
        beta: Step size of the multipliers; it multiplies the noise of the constraint values.
        max_multiplier: Upper bound on the multipliers.
        learning_rate: Step size, before `decay`: a number or a schedule.
        decay: The step size of round t is divided by `t**decay`; 0 keeps it constant.
        average: The reported model is the average of all rounds' w, weighted by `t**average`.
        measurements: Number of measurements of the reported model's constraint values in the last round; their average
            is reported.

    Returns:
        The strategy, for `Privacy(noise_on="gradient")`. If `rounds` is given, the run must have this number of rounds.

    Raises:
        ConfigError: If an argument is out of range.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) % 2
        >>> data = [torch.utils.data.TensorDataset(x[i : i + 20], y[i : i + 20]) for i in (0, 20)]
        >>> problem = fedpriv.Problem(constraints=(fedpriv.LossAtMost(0.6),))
        >>> clients = fedpriv.make_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), data, problem)
        >>> result = fedpriv.train(clients, fedpriv.private_al(), fedpriv.Privacy(epsilon=2.0), rounds=4)
        >>> result.rounds, result.spent.epsilon <= 2
        (4, True)
    """
    step = ScalarizedStep(rounds, beta, max_multiplier, learning_rate, decay, measurements)
    server = ProximalMean(rounds, regularizer, learning_rate, decay, average, measurements)
    return Strategy(step, server, name="private_al", monitor=("worst_estimate",), regularizer=regularizer)


def _append_worst(rows: Tensor, values: Tensor, equality: Tensor) -> Tensor:
    """Appends each client's largest violation to its row."""
    far = values.abs().where(equality, values)
    if values.shape[1]:
        worst = far.amax(1, keepdim=True)
    else:
        worst = rows.new_zeros(len(rows), 1)
    return torch.cat([rows, worst], 1)


NAMES = {
    "private_al": RegistryEntry(
        private_al, "augmented Lagrangian for constraints with private values and gradients, a fixed number of rounds"
    )
}
