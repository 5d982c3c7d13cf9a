"""Models of three inputs or so, and the start of a run with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp

FEATURES, CLASSES = 6, 3


def clients(model: nn.Module, loss=None, x: Tensor | None = None, y: Tensor | None = None) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(12, FEATURES, generator=draw) if x is None else x
    y = torch.randint(0, CLASSES, (len(x),), generator=draw) if y is None else y
    # equal in content, for that is nothing to a trial, and examples of their own
    both = [TensorDataset(x[::2].clone(), y[::2].clone()), TensorDataset(x, y)]
    return fp.make_clients(model, loss or nn.CrossEntropyLoss(), both)


def start(*args: object, **options: object) -> fp.Training:
    return fp.Training(clients(*args, **options), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)


def around(layer: nn.Module) -> nn.Module:
    """The layer in the middle of a network."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Sequential(nn.Tanh(), layer), nn.Linear(4, CLASSES))


class Mapped(nn.Module):
    """A layer from a function, with an attribute that it may misuse as a memory."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.kept = function, None

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)
