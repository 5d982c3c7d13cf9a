"""Small runs with noise that is correlated between rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.settings import Noise
from fedpriv.strategies.base import Strategy

SIZES, ROUNDS = (12, 9, 4, 12), 10
NOISES: list[Noise] = [fp.BSR(4), fp.Banded(3), fp.BLT(2), fp.BSR(100)]
PRIVACY = fp.Privacy(epsilon=4.0, sampling=fp.Cyclic(4), noise=fp.BSR(4))


def clients_of(sizes: tuple[int, ...] = SIZES) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(m, 3, generator=draw), torch.arange(m) % 2) for m in sizes]
    return fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)


def training_of(privacy: fp.Privacy = PRIVACY, strategy: Strategy | None = None, **options: Any) -> fp.Training:
    settings = {"rounds": ROUNDS, "seed": 1, "secret_seed": 1, "checkpoint_every": 2, **options}
    return fp.Training(clients_of(), strategy or fp.fedavg(0.5), privacy, **settings)


def dense(factor: Factor, rounds: int) -> np.ndarray:
    column = factor.column(rounds)
    return np.array([[column[t - j] if t >= j else 0.0 for j in range(rounds)] for t in range(rounds)])


class Mean(nn.Module):
    """The loss is the output: an example's gradient is its input."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return output.mean()
