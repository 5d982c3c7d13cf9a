"""Private gradient descent for empirical risk minimisation (Wang, Ye, Xu, 2017, algorithm 4; DP-GD).

Problem: min_x F(x) + h(x), F the mean loss of all examples of all clients, h a regulariser with a proximal map:

    x_t = prox_{eta h}(y_{t-1} - eta g~(y_{t-1})),  y_t = x_t + beta (x_t - x_{t-1})

g~ is the mean of the clients' private gradients. In the paper beta = 0. With momentum beta > 0 (Nesterov, 1983; Beck
and Teboulle, 2009) ill-conditioned problems need fewer steps; with fewer steps, each step needs less noise. For
non-convex F the paper bounds the gradient norm of an iterate that is drawn at random (theorem 6.3, beta = 0);
`RandomIterate` reports this iterate. With Poisson batches the algorithm is DP-SGD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import Count, Fraction, validate_arguments
from fedpriv.strategies.base import Memory, Network, Oracle, Output, Strategy
from fedpriv.strategies.optimizers import Optimizer, Sgd
from fedpriv.strategies.outputs import Average, choose_output
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.schedules import Rate, advance_round, evaluate_rate, init_round_counter
from fedpriv.strategies.state import Rounds


@dataclass(frozen=True)
class SendGradient:
    """Sends the private gradient at the point that was received as the first value."""

    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[Memory] = "none"  # nothing survives a round
    linear: ClassVar[bool] = True  # the query result itself

    receives: tuple[str, ...] = ("point",)

    def init(self, params: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Queries one private gradient."""
        return oracle.gradient(received.chunk(len(self.receives), 1)[0]), state


@dataclass(frozen=True)
class SendGradientAndNoise:
    """Sends the private gradient and the row's share in the noise variance of the mean, `[k, dim + 1]`."""

    receives: ClassVar[tuple[str, ...]] = ("point",)
    sends: ClassVar[tuple[str, ...]] = ("gradient", "noise_variance")
    memory: ClassVar[Memory] = "none"  # nothing survives a round
    linear: ClassVar[bool] = True  # the query result itself, and a public number

    def init(self, params: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        """Queries one private gradient."""
        return torch.cat([oracle.gradient(received), oracle.noise_in_mean], 1), state


@dataclass(frozen=True)
class Iterates:
    """The server's state. Without momentum, `point` and `iterate` are equal.

    Attributes:
        point: y, at which gradients are computed, `[1, dim]`.
        iterate: x, `[1, dim]`.
        clock: The round, if the step size depends on it.
        optimizer: State of the optimiser, rows `[1, ...]`.
    """

    point: Tensor
    iterate: Tensor
    clock: Rounds | None = None
    optimizer: Any = None


@validate_arguments("strategy")
@dataclass(frozen=True)
class ProximalStep:
    """`x+ = prox_{eta h}(y - eta mean(g~))`; sends `y = x+ + momentum (x+ - x)`, and x+ if momentum > 0.

    With an optimiser other than `Sgd`, the optimiser makes the step from y. This requires h = 0 and no momentum.

    Raises:
        ConfigError: If an optimiser is combined with a regulariser or momentum.
    """

    is_sum: ClassVar[bool] = True

    learning_rate: Rate
    regularizer: Proximal = field(default_factory=Zero)
    momentum: Fraction = 0.0
    optimizer: Optimizer[Any] = Sgd()

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, Sgd):
            return
        if self.momentum:
            fix = (
                "the optimizer already has momentum: leave one of the two out, or write optimizer: {momentum: "
                "{nesterov: true}}"
            )
            raise ConfigError("strategy.momentum", self.momentum, fix)
        if not isinstance(self.regularizer, Zero):
            fix = (
                "a regularizer needs plain gradient steps: leave the regularizer or the optimizer out, or use "
                "weight_decay of adamw"
            )
            raise ConfigError("strategy.regularizer", self.regularizer, fix)

    @property
    def receives(self) -> tuple[str, ...]:
        """The gradient and, if the optimiser subtracts the noise variance, this variance."""
        if self.optimizer.corrects:
            return ("gradient", "noise_variance")
        return ("gradient",)

    @property
    def sends(self) -> tuple[str, ...]:
        """The point y and, with momentum, the iterate x. (Computing x from y instead would add rounding errors.)"""
        if self.momentum:
            return ("point", "iterate")
        return ("point",)

    def init(self, params: Tensor) -> tuple[Tensor, Iterates]:
        """Starts all clients from the first client's model, projected onto the domain of h."""
        x = self.regularizer.prox(params[:1].clone(), 0.0)
        return self._broadcast_rows(x, x, len(params)), Iterates(
            x, x, init_round_counter(self.learning_rate), self.optimizer.init(x)
        )

    def __call__(self, message: Tensor, network: Network, state: Iterates) -> tuple[Tensor, Iterates]:
        """Makes one step."""
        mean = network.mean(message)
        t, next_clock = advance_round(state.clock)
        rate = evaluate_rate(self.learning_rate, t)
        dim = state.point.shape[1]
        gradient = mean[:1, :dim]
        if self.optimizer.corrects:
            variance = mean[:1, dim:]
        else:
            variance = None
        x, optimizer = self.optimizer.step(state.point, gradient, rate, state.optimizer, variance)
        x = self.regularizer.prox(x, rate)
        if self.momentum:
            point = x + self.momentum * (x - state.iterate)
        else:
            point = x
        return self._broadcast_rows(point, x, len(mean)), Iterates(point, x, next_clock, optimizer)

    def _broadcast_rows(self, point: Tensor, x: Tensor, n: int) -> Tensor:
        """Returns the broadcast rows, `[n, dim]`, or `[n, 2 dim]` with momentum."""
        if self.momentum:
            return torch.cat([point, x], 1).expand(n, -1)
        return point.expand(n, -1)


@dataclass(frozen=True)
class ReportIterate:
    """Reports the iterate x, the second half of the server's row, through another output."""

    output: Output[Any]

    def init(self, received: Tensor) -> Any:  # noqa: ANN401 - whatever the other output keeps
        """Returns the other output's state."""
        return self.output.init(received.chunk(2, 1)[1])

    def __call__(self, received: Tensor, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Returns the other output's models."""
        return self.output(received.chunk(2, 1)[1], state)


@dataclass(frozen=True)
class Drawn:
    """The newest iterate, or the drawn iterate once its round has passed.

    Attributes:
        model: `[1, dim]`.
        round: Rounds so far.
    """

    model: Tensor
    round: int


@validate_arguments("strategy")
@dataclass(frozen=True)
class RandomIterate:
    """Reports `x_m`, with m drawn uniformly from {0, ..., rounds - 1} before the run.

    Epsilon is computed for the whole run, for any m.
    """

    rounds: Count
    seed: int = 0

    @property
    def chosen(self) -> int:
        """The drawn m."""
        return int(torch.randint(self.rounds, (), generator=torch.Generator().manual_seed(self.seed)))

    def init(self, received: Tensor) -> Drawn:
        """Returns `x_0`."""
        return Drawn(received[:1].clone(), 0)

    def __call__(self, received: Tensor, state: Drawn) -> tuple[Tensor, Drawn]:
        """Returns the newest iterate up to round m, then `x_m`."""
        t = state.round + 1
        if t <= self.chosen:
            model = received[:1].clone()
        else:
            model = state.model
        return model, Drawn(model, t)


@validate_arguments("strategy")
def gradient_descent(
    learning_rate: Rate,
    regularizer: Proximal = Zero(),
    *,
    optimizer: Optimizer[Any] = Sgd(),
    momentum: Fraction = 0.0,
    average: Average | None = None,
    random_iterate: Count | None = None,
    seed: int = 0,
) -> Strategy:
    """Creates DP-GD: proximal gradient descent on private gradients, with a server (Wang, Ye, Xu, 2017, algorithm 4).

    Args:
        learning_rate: Step size eta, a number or a schedule; the paper uses 1 / L for an L-smooth loss.
        regularizer: h, e.g. `L2(0.01)`; none by default.
        optimizer: Optimiser of the server: `Sgd()` (default), `Momentum()`, `Adam()` (DP-Adam) or `AdamW()`.
            Optimisers other than `Sgd()` allow neither a regulariser nor `momentum`.
        momentum: Nesterov momentum, in [0, 1); 0 by default. Over all later steps, a gradient with its noise moves x by
            up to `learning_rate / (1 - momentum)` times the gradient.
        average: Reported model: the last iterate (None, default), for a number p the average of all iterates with
            weights `t**p`, or an `Ema()`.
        random_iterate: Number of rounds T of the run, to report an iterate drawn from `{x_0, ..., x_{T-1}}`. None
            (default) reports the iterate that `average` selects.
        seed: Public seed of that draw; 0 by default.

    Returns:
        The strategy.

    Raises:
        ConfigError: If `random_iterate` is combined with `average` or `momentum`, or a number is out of range.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.gradient_descent(0.5, momentum=0.9)
        >>> fedpriv.plan([100] * 4, strategy, fedpriv.Privacy(epsilon=1.0), rounds=5).releases
        5
    """
    if average is not None and random_iterate is not None:
        raise ConfigError(
            "strategy.average", average, "cannot be combined with random_iterate: leave one of the two out"
        )
    output: Output[Any] = choose_output(average)
    if random_iterate is not None:
        if momentum or not isinstance(optimizer, Sgd):
            raise ConfigError(
                "strategy.momentum",
                momentum,
                "the guarantee of random_iterate holds only for plain gradient steps: leave momentum and optimizer out",
            )
        output = RandomIterate(random_iterate, seed)
    if momentum:
        output = ReportIterate(output)
    server = ProximalStep(learning_rate, regularizer, momentum, optimizer)
    if optimizer.corrects:
        local = SendGradientAndNoise()
    else:
        local = SendGradient(server.sends)
    return Strategy(local, server, output, ("dp_gd"), regularizer)  # pyright: ignore[reportArgumentType] - the names sent depend on the momentum
