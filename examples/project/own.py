"""Your own data, model and algorithm: config.yaml and train.py name them; change each into yours."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedpriv.data import Split
from fedpriv.strategies.base import Memory, Network, Oracle, Strategy


def spirals(*, examples: int = 2000, noise: float = 0.05, seed: int = 0) -> Split:
    """Two interleaved spirals in the plane: train and test examples as (input, target) tensors."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(examples) % 2
    radius = torch.rand(examples, generator=generator).sqrt()
    angle = 3 * radius + torch.pi * labels
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    points += noise * torch.randn(points.shape, generator=generator)
    cut = examples * 4 // 5
    return Split(
        train=TensorDataset(points[:cut], labels[:cut]),
        test=TensorDataset(points[cut:], labels[cut:]),
        n_classes=2,
        writers=None,
        description=f"two spirals: {cut} train and {examples - cut} test points",
    )


class Net(nn.Module):
    """Any module that treats each example on its own: GroupNorm and not BatchNorm."""

    def __init__(self, *, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of two classes: `[b, 2] -> [b, 2]`."""
        return self.layers(inputs)


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

    model: Tensor  # [n, dim]
    velocity: Tensor  # [n, dim]


@dataclass(frozen=True)
class HeavyBall:
    """What becomes of the messages: a step along their mean, with momentum."""

    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    learning_rate: float
    momentum: float

    def init(self, params: Tensor) -> tuple[Tensor, Moving]:
        return params, Moving(params, torch.zeros_like(params))

    def __call__(self, message: Tensor, network: Network, state: Moving) -> tuple[Tensor, Moving]:
        velocity = self.momentum * state.velocity + network.mean(message)
        model = state.model - self.learning_rate * velocity
        return model, Moving(model, velocity)


def heavy_ball(*, learning_rate: float = 1.0, momentum: float = 0.8) -> Strategy:
    """The algorithm as a configuration names it: its parameters are the options there."""
    return Strategy(SendGradient(), HeavyBall(learning_rate, momentum), name="heavy_ball")
