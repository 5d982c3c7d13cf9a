"""Federated averaging (McMahan et al., 2017).

Each participant starts at the server's model w, makes `local_steps` gradient steps and sends what it changed; the
server adds the mean change:

    x_p = w;  x_p -= lr g~_p(x_p)  (local_steps times);  u_p = x_p - w
    w  += server_lr mean_p(u_p)

With one local step it is distributed gradient descent (FedSGD). With the boundary `at: message` it is the
client-level DP-FedAvg of McMahan et al. (2018): u_p is clipped and noised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.strategies.base import Averaged, Last, Memory, Network, Oracle, State, Strategy


@dataclass(frozen=True)
class LocalSteps:
    """Gradient steps from the received model; the message is the change."""

    hears: ClassVar[tuple[str, ...]] = ("model",)
    says: ClassVar[tuple[str, ...]] = ("update",)

    learning_rate: float
    local_steps: int = 1

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise ConfigError("strategy.local_steps", self.local_steps, "a client makes at least one step")

    @property
    def memory(self) -> Memory:
        """Nothing survives a round."""
        return "none"

    @property
    def linear(self) -> bool:
        """A single step is a multiple of its answer."""
        return self.local_steps == 1

    def init(self, params: Tensor) -> State:
        """No state."""
        return {}

    def __call__(self, received: Tensor, state: State, oracle: Oracle) -> tuple[Tensor, State]:
        """One round."""
        x = received
        for _ in range(self.local_steps):
            x = x - self.learning_rate * oracle.gradient(x)
        return x - received, state


@dataclass(frozen=True)
class AddMeanUpdate:
    """`w += server_lr mean(u)`."""

    hears: ClassVar[tuple[str, ...]] = ("update",)
    says: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    learning_rate: float = 1.0

    def init(self, params: Tensor) -> tuple[Tensor, State]:
        """All start from the first client's model."""
        return params[:1].expand_as(params), {"model": params[:1].clone()}

    def __call__(self, message: Tensor, network: Network, state: State) -> tuple[Tensor, State]:
        """Add the mean update."""
        mean = network.mean(message)
        model = state["model"] + self.learning_rate * mean[:1]
        return model.expand_as(mean), {"model": model}


def fedavg(
    learning_rate: float, local_steps: int = 1, *, server_learning_rate: float = 1.0, average: float | None = None
) -> Strategy:
    """Federated averaging on a star.

    Args:
        learning_rate: Step of the clients.
        local_steps: Gradient steps per round; each asks the oracle once, so each is paid for.
        server_learning_rate: Step of the server along the mean update.
        average: None reports the last model; a power p the average weighted by `t**p`.

    Returns:
        The strategy.
    """
    output = Last() if average is None else Averaged(average)
    local = LocalSteps(learning_rate, local_steps)
    return Strategy(local, AddMeanUpdate(server_learning_rate), output, "fedavg")
