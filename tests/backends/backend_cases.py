"""Models, batches and gradients that the tests of the backends share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss

FEATURES, CLASSES = (1, 4, 4), 3


@dataclass(frozen=True)
class Case:
    """A model and its loss, and the backends that serve it."""

    name: str
    model: nn.Module
    loss: Loss
    backends: tuple[str, ...] = ("vmap", "linear")

    def rows(self, clients: int, dtype: torch.dtype = torch.float64) -> Tensor:
        dim = sum(p.numel() for p in self.model.parameters())
        return torch.randn(clients, dim, dtype=dtype)


class Flat(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(16, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


class Squares(nn.Module):
    """A loss that only calls with one example may use: it divides by the batch size twice."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sum(1) - targets).square().mean() / len(outputs)


def cnn() -> nn.Module:
    convolution = nn.Conv2d(1, 4, 3, padding=1)
    return nn.Sequential(
        convolution, nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES), nn.LayerNorm(CLASSES)
    )


def softmax(bias: bool = True) -> Case:
    return Case(f"softmax, bias {bias}", Flat(bias), nn.CrossEntropyLoss())


CASES = [
    softmax(bias=True),
    softmax(bias=False),
    Case("svm", nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)), nn.MultiMarginLoss()),
    Case("weighted", Flat(bias=True), nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0]).double())),
    Case("user's loss", Flat(bias=True), Squares()),
    Case("cnn", cnn(), nn.CrossEntropyLoss(), ("vmap",)),
]


def ragged(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Batch:
    """Clients of these sizes; the padding holds numbers that would be seen in any sum."""
    clients, width = len(sizes), max(sizes)
    inputs = torch.randn(clients, width, *FEATURES, dtype=dtype)
    mask = torch.arange(width) < torch.tensor(sizes).unsqueeze(1)
    inputs[~mask] = 1e3
    return Batch(torch.arange(clients), inputs, torch.randint(0, CLASSES, (clients, width)), mask)


def join(inputs: Tensor, targets: Tensor) -> Batch:
    """A batch of one client."""
    mask = torch.ones(1, len(inputs), dtype=torch.bool)
    return Batch(torch.zeros(1, dtype=torch.long), inputs.unsqueeze(0), targets.unsqueeze(0), mask)
