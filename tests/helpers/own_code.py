"""A user's own models, data and algorithm, to be named in configurations."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv.data import Split
from fedpriv.strategies.base import Strategy


class Tiny(nn.Module):
    """A user's model."""

    def __init__(self, n_features: int, n_classes: int, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(n_features, width), nn.Tanh(), nn.Linear(width, n_classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class WithBatchNorm(nn.Module):
    """A user's model that mixes examples."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(n_features, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, n_classes)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class TakesFive(nn.Linear):
    """A model of other inputs."""

    def __init__(self) -> None:
        super().__init__(5, 10)


class GivesTwo(Tiny):
    """A model of fewer classes."""

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features, 2)


def words() -> Split:
    """Sentences of four words, of seven that there are."""
    sentences, classes = torch.arange(100).view(25, 4) % 7, torch.arange(25) % 3
    train, test = TensorDataset(sentences[:20], classes[:20]), TensorDataset(sentences[20:], classes[20:])
    return Split(train, test, 3, None, "words")


class Bag(nn.Module):
    """Class scores of words, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(7, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scores(inputs).sum(1)


def descent(learning_rate: float, rounds: int) -> Strategy:
    """A user's strategy; it may ask for the number of rounds."""
    assert rounds == 30
    return fedpriv.fedavg(learning_rate, average=1.0)


def halving(round_index: int) -> float:
    """A user's budget schedule."""
    return 0.5**round_index


def not_a_strategy() -> int:
    return 3
