"""Adaptive clipping of client updates to a quantile of their norms (Andrew et al., 2021, algorithm 1).

It works with strategies whose clients receive a model and send an update u_i. The server also sends the clip bound C_t,
and each participant sends one row of norm at most 1,

    (cos(a) clip(u_i, C_t) / C_t,  sin(a) (2 b_i - 1)),   b_i = 1 if ||u_i|| <= C_t else 0

From the noised mean of these rows the server computes the mean update and the fraction b of clients within the bound:

    C_{t+1} = C_t exp(-clip_learning_rate (b - quantile))

The update and the bit b_i form one vector, so a round makes one release. `Privacy(clip=Clip(1))` enforces the norm of
this vector; another clip bound raises an error. `sin(a) = share`; the paper's noise on the bit is `sigma_b = noise / (2
sin(a))`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import NonNegative, Positive, Ratio, validate_arguments
from fedpriv.strategies.base import Aggregator, Ends, LocalStep, Memory, Network, Oracle, Output, Strategy
from fedpriv.strategies.state import S


@dataclass(frozen=True)
class ClipToReceivedBound:
    """Clips the inner step's update to the clip bound that was received in the last column. Also sends a flag that is
    true if the update was within this bound.
    """

    receives: ClassVar[tuple[str, ...]] = ("model", "clip_bound")
    sends: ClassVar[tuple[str, ...]] = ("update", "inside")
    linear: ClassVar[bool] = False  # clipping is not linear

    inner: LocalStep[Any]
    share: float

    @property
    def memory(self) -> Memory:
        """The memory of the inner step."""
        return self.inner.memory

    def init(self, params: Tensor) -> Any:  # noqa: ANN401 - whatever the inner step keeps
        """Returns the inner step's state."""
        return self.inner.init(params)

    def __call__(self, received: Tensor, state: Any, oracle: Oracle) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Computes one round."""
        bound = received[:, -1:]
        update, state = self.inner(received[:, :-1], state, oracle)
        norms = update.norm(dim=1, keepdim=True)
        clipped = update / torch.maximum(norms, bound)
        inside = torch.where(norms <= bound, 1.0, -1.0).to(update.dtype)
        return torch.cat([math.sqrt(1 - self.share**2) * clipped, self.share * inside], 1), state


@dataclass(frozen=True)
class Bounded(Generic[S]):
    """The server's state.

    Attributes:
        inner: State of the inner aggregator.
        clip_bound: C_t, `[]`.
    """

    inner: S
    clip_bound: Tensor

    @property
    def done(self) -> bool:
        """True if the inner aggregator ends the run."""
        return isinstance(self.inner, Ends) and bool(self.inner.done)


@dataclass(frozen=True)
class FollowQuantile(Generic[S]):
    """Undoes the scaling of messages for the inner aggregator, and moves the clip bound towards the quantile."""

    receives: ClassVar[tuple[str, ...]] = ("update", "inside")
    sends: ClassVar[tuple[str, ...]] = ("model", "clip_bound")

    inner: Aggregator[S]
    initial: float
    quantile: float
    learning_rate: float
    share: float

    @property
    def is_sum(self) -> bool:
        """The value of `is_sum` of the inner aggregator."""
        return self.inner.is_sum

    def init(self, params: Tensor) -> tuple[Tensor, Bounded[S]]:
        """Appends the initial bound to the broadcast of the inner aggregator."""
        received, inner = self.inner.init(params)
        return _append_bound(received, self.initial), Bounded(inner, params.new_tensor(self.initial))

    def __call__(self, message: Tensor, network: Network, state: Bounded[S]) -> tuple[Tensor, Bounded[S]]:
        """Computes one round."""
        bound = state.clip_bound
        updates = message[:, :-1] * (bound / math.sqrt(1 - self.share**2))
        received, inner = self.inner(updates, network, state.inner)
        inside = (network.mean(message[:, -1:])[0, 0] / self.share + 1) / 2
        # noise may throw the fraction far out of [0, 1]: one round moves the bound by a bounded factor
        bound = bound * torch.exp(-self.learning_rate * (inside.clamp(0, 1) - self.quantile))
        return _append_bound(received, float(bound)), Bounded(inner, bound)


@dataclass(frozen=True)
class WithoutBound:
    """Reports all but the last column through another output."""

    output: Output[Any]

    def init(self, received: Tensor) -> Any:  # noqa: ANN401 - whatever the other output keeps
        """Returns the other output's state."""
        return self.output.init(received[:, :-1])

    def __call__(self, received: Tensor, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Returns the other output's models."""
        return self.output(received[:, :-1], state)


@validate_arguments("strategy.adaptive_clip")
def adaptive_clipping(
    strategy: Strategy,
    initial: Positive = 0.1,
    *,
    quantile: Ratio = 0.5,
    clip_learning_rate: NonNegative = 0.2,
    share: Ratio = 0.1,
) -> Strategy:
    """Makes the clip bound of client updates follow a quantile of their norms (Andrew et al., 2021).

    Run it with `Privacy(noise_on="message", unit="client", clip=Clip(1))`.

    Args:
        strategy: A strategy with clients that receive a model and send an update, e.g. `fedavg(...)`.
        initial: First bound on the l2 norm of an update; 0.1 by default.
        quantile: Fraction of updates that should be within the bound, in (0, 1); the median (0.5) by default.
        clip_learning_rate: Step size of the bound's logarithm; 0.2, as in the paper, by default.
        share: Norm of the message entry that reports whether the update was within the bound, in (0, 1); 0.1 by
            default. The update's part of the message has a norm of at most `sqrt(1 - share^2)`.

    Returns:
        The strategy with the adaptive bound.

    Raises:
        ConfigError: If an option is out of range, or clients of the strategy do not exchange models and updates.

    Examples:
        >>> import fedpriv
        >>> strategy = fedpriv.adaptive_clipping(fedpriv.fedavg(0.1), quantile=0.5)
        >>> privacy = fedpriv.Privacy(epsilon=2.0, noise_on="message", unit="client", clip=fedpriv.Clip(1.0))
        >>> fedpriv.plan([100] * 4, strategy, privacy, rounds=5).releases
        5
    """
    if strategy.local_step.receives != ("model",) or strategy.local_step.sends != ("update",):
        raise ConfigError(
            "strategy",
            strategy.name,
            "adaptive clipping needs a strategy with clients that receive a model and send an update, e.g. fedavg",
        )
    aggregator = FollowQuantile(strategy.aggregator, initial, quantile, clip_learning_rate, share)
    return Strategy(
        ClipToReceivedBound(strategy.local_step, share),  # pyright: ignore[reportArgumentType] - memory is the inner one's
        aggregator,  # pyright: ignore[reportArgumentType] - is_sum is the inner one's
        WithoutBound(strategy.output),
        f"{strategy.name}_adaptive_clip",
        monitor=("clip_bound",),
        message_norm=1.0,
    )


def _append_bound(received: Tensor, bound: float) -> Tensor:
    """Appends the bound to each row, `[n, dim] -> [n, dim + 1]`; if all rows are one expanded row, so is the result."""
    if received.stride(0) == 0:
        rows = received[:1]
    else:
        rows = received
    return torch.cat([rows, rows.new_full((len(rows), 1), bound)], 1).expand(len(received), -1)


# an option of these strategies: their clients send an update
AROUND = {name: {"adaptive_clip": adaptive_clipping} for name in ("fedavg", "fedprox", "fedopt")}
