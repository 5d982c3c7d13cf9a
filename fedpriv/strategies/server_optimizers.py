"""Server optimisers, which step along the clients' mean update u: plain, with momentum, or adaptive (Reddi, 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from fedpriv.settings.checks import Fraction, NonNegative, Positive, validate_arguments
from fedpriv.strategies.state import S


class ServerOptimizer(Protocol[S]):
    """Steps along the mean update; S is the type of its state."""

    def init(self, model: Tensor) -> S:
        """Returns the state before round 0."""
        ...

    def __call__(self, model: Tensor, update: Tensor, state: S) -> tuple[Tensor, S]:
        """Returns the next model `[1, dim]`, from the mean update `[1, dim]`, and the new state."""
        ...


@validate_arguments("strategy.server")
@dataclass(frozen=True)
class ServerSgd:
    """`v = momentum v + u;  w += learning_rate v`. It is FedAvg or, with momentum, FedAvgM.

    Examples:
        >>> import torch
        >>> from fedpriv.strategies.server_optimizers import ServerSgd
        >>> model, _ = ServerSgd(learning_rate=0.5)(torch.zeros(1, 2), torch.tensor([[2.0, 4.0]]), None)
        >>> model.tolist()
        [[1.0, 2.0]]
    """

    learning_rate: Positive = 1.0
    momentum: Fraction = 0.0

    def init(self, model: Tensor) -> Tensor | None:
        """Returns the velocity v = 0; None without momentum."""
        if self.momentum:
            return model * 0
        return None

    def __call__(self, model: Tensor, update: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Makes one step."""
        if state is None and self.learning_rate == 1:
            return model + update, None
        if state is None:
            return model + self.learning_rate * update, None
        velocity = self.momentum * state + update
        return model + self.learning_rate * velocity, velocity


@dataclass(frozen=True)
class ServerMoments:
    """Running moments of the mean update.

    Attributes:
        m: Moving average of the update, `[1, dim]`.
        v: Second moment, which follows its square, `[1, dim]`.
    """

    m: Tensor
    v: Tensor


@validate_arguments("strategy.server")
@dataclass(frozen=True)
class ServerAdaptive:
    """FedAdagrad, FedAdam, FedYogi: `m = b1 m + (1 - b1) u;  w += learning_rate m / (sqrt(v) + tau)`.

    `v` follows `u^2`: Adagrad `v += u^2`; Adam `v = b2 v + (1 - b2) u^2`; Yogi `v -= (1 - b2) u^2 sign(v - u^2)`; it
    starts at `tau^2` (Reddi et al., 2021, algorithm 2).

    Examples:
        >>> import fedpriv
        >>> fedpriv.fedopt(0.1, server_optimizer="yogi").aggregator.server.rule
        'yogi'
    """

    rule: Literal["adagrad", "adam", "yogi"] = "adam"
    learning_rate: Positive = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    tau: NonNegative = 1e-3

    def init(self, model: Tensor) -> ServerMoments:
        """Zero momentum, `v = tau^2`."""
        return ServerMoments(model * 0, model * 0 + self.tau**2)

    def __call__(self, model: Tensor, update: Tensor, state: ServerMoments) -> tuple[Tensor, ServerMoments]:
        """Makes one step."""
        v = state.v
        square = update.square()
        m = self.beta1 * state.m + (1 - self.beta1) * update
        if self.rule == "adagrad":
            v = v + square
        elif self.rule == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * (v - square).sign()
        return model + self.learning_rate * m / (v.sqrt() + self.tau), ServerMoments(m, v)
