"""Runs with the loaders of twenty examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    TensorDataset,
)

import fedpriv as fp
from fedpriv.models import SoftmaxRegression

X = torch.arange(60.0).reshape(20, 3) / 60
Y = torch.arange(20) % 2


class Flipped(Dataset):
    """Turns an input round with this chance, as an augmentation does."""

    def __init__(self, chance: float, n: int = 20) -> None:
        self.chance, self.n, self.reads = chance, n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return (X[index].flip(0) if torch.rand(()) < self.chance else X[index]), Y[index]


def training(*loaders: DataLoader, privacy: fp.Privacy | None = None, model: nn.Module | None = None) -> fp.Training:
    clients = [fp.Client(model or SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), loader) for loader in loaders]
    return fp.Training(clients, fp.fedavg(1.0), privacy or fp.Privacy(epsilon=3), rounds=1)


def table(low: int = 0, high: int = 20) -> TensorDataset:
    return TensorDataset(X[low:high], Y[low:high])
