"""Your algorithm: what each client sends, and what becomes of the messages; here gradient descent with momentum.

It sees no data: its clients ask an oracle, whose answers are clipped, noised and counted.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.strategies import Memory, Network, Oracle, Strategy


@dataclass(frozen=True)
class SendGradient:
    """What each client does: it asks for its gradient, which is clipped, noised and counted, and sends it."""

    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[Memory] = "none"
    linear: ClassVar[bool] = True

    def init(self, params: Tensor) -> None:
        """A client keeps nothing."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        return oracle.gradient(received), None


@dataclass(frozen=True)
class Moving:
    """What the aggregator keeps between rounds."""

    model: Tensor  # [1, dim]: all clients receive the same row
    velocity: Tensor  # [1, dim]


@dataclass(frozen=True)
class HeavyBall:
    """What becomes of the messages: a step along their mean, with momentum."""

    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    learning_rate: float
    momentum: float

    def init(self, params: Tensor) -> tuple[Tensor, Moving]:
        model = params[:1]
        return model.expand_as(params), Moving(model, torch.zeros_like(model))

    def __call__(self, message: Tensor, network: Network, state: Moving) -> tuple[Tensor, Moving]:
        mean = network.mean(message)
        velocity = self.momentum * state.velocity + mean[:1]
        model = state.model - self.learning_rate * velocity
        return model.expand_as(mean), Moving(model, velocity)


def heavy_ball(*, learning_rate: float = 1.0, momentum: float = 0.8) -> Strategy:
    """The algorithm as a configuration names it: its parameters are the options there."""
    return Strategy(SendGradient(), HeavyBall(learning_rate, momentum), name="heavy_ball")
