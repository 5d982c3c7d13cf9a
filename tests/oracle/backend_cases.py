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
    backends: tuple[str, ...] = ("vmap", "ghost", "linear")

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


class Words(nn.Module):
    """Embeddings, one of them tied to the last layer, positions that are the same for all examples, attention."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(CLASSES, width, padding_idx=0), nn.Embedding(16, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, batch_first=True)
        self.first = nn.Linear(width, width)
        self.last = nn.Linear(width, CLASSES, bias=False)
        self.last.weight = self.word.weight

    def forward(self, x: Tensor) -> Tensor:
        words = (x.flatten(1) * 2).long().remainder(CLASSES)
        values = self.word(words) + self.place(torch.arange(16, device=x.device)) + x.flatten(1).unsqueeze(2)
        values = self.block(values.transpose(0, 1).contiguous().transpose(0, 1))
        return self.last(self.first(values.transpose(0, 1)).mean(0))


class InPlace(nn.Module):
    """Changes in place what comes out of layers, and calls one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, stride=2, padding=1, groups=2)
        self.relu, self.last = nn.LeakyReLU(0.1, inplace=True), nn.Linear(2, CLASSES)
        self.scale = nn.Parameter(torch.ones(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        y = self.second(x)
        y *= self.scale
        y = self.relu(self.second(y) + x[:, :, :1, :1])
        return self.last(y.mean((2, 3)))


class Images(nn.Module):
    """Four images of each example, one-dimensional convolution, a weight that is computed, one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.wide = nn.Conv1d(1, 3, 2, dilation=2, bias=False), nn.Conv1d(3, 24, 2)
        self.mixed = nn.utils.parametrizations.weight_norm(nn.Linear(24, CLASSES))
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        lines = self.line(x.flatten(1, 2).reshape(-1, 1, 4))
        return self.mixed(self.wide(lines).tanh().reshape(len(x), 4, 24).sum(1))


class Wide(nn.Module):
    """Layers with weights that are large compared with their inputs and outputs, for one position and for several."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.halves = nn.Conv2d(1, 8, 4), nn.Linear(8, 24)
        self.last = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        halves = self.halves(x.flatten(1).unflatten(1, (2, 8))).tanh().sum(1)
        return self.last(torch.cat([self.whole(x).flatten(1).tanh(), halves], 1))


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
    Case("cnn", cnn(), nn.CrossEntropyLoss(), ("vmap", "ghost")),
    Case("words", Words(), nn.CrossEntropyLoss(), ("vmap", "ghost")),
    Case("in place", InPlace(), nn.CrossEntropyLoss(), ("vmap", "ghost")),
    Case("wide", Wide(), nn.CrossEntropyLoss(), ("vmap", "ghost")),
    Case("images", Images(), Squares(), ("vmap", "ghost")),
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
