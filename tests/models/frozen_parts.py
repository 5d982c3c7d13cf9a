"""Models whose bodies are frozen, and clients that train their heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.layout import collect_constants

CLASSES = 3


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class ResNet(nn.Module):
    """A body that is frozen, with a buffer, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Residual(4), Residual(4), nn.Dropout(0.3))
        self.head = nn.Linear(4, CLASSES)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.scale * x).mean((2, 3)))


def resnet() -> ResNet:
    torch.manual_seed(0)
    return ResNet()


def data(n_clients: int = 3) -> list[TensorDataset]:
    draw = torch.Generator().manual_seed(1)
    return [
        TensorDataset(torch.randn(6 + i, 1, 5, 5, generator=draw), torch.randint(0, CLASSES, (6 + i,), generator=draw))
        for i in range(n_clients)
    ]


def clients(model: nn.Module | None = None) -> list[fp.Client]:
    return fp.make_clients(model or resnet(), nn.CrossEntropyLoss(), data())


def assert_frozen_as(model: nn.Module, start: nn.Module) -> None:
    wanted, found = collect_constants(start), collect_constants(model)
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def small() -> nn.Module:
    """Every second parameter frozen; no dropout, so that backends can be compared."""
    torch.manual_seed(2)
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5), nn.Linear(5, CLASSES)]
    model = nn.Sequential(*layers)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    return model.double()
