"""Small runs under noise that cancels between pairs."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.strategies.base import Strategy

SIZES = (6, 9, 4, 12)
PAIRWISE = Pairwise(1, 3.0)
PRIVACY = fp.Privacy(epsilon=4.0, trust=PAIRWISE, sampling=fp.Poisson(0.7))


def clients_of(sizes: tuple[int, ...] = SIZES) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(m, 3, generator=draw), torch.arange(m) % 2) for m in sizes]
    return fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)


def training_of(privacy: fp.Privacy = PRIVACY, strategy: Strategy | None = None, **options: object) -> fp.Training:
    settings = {"rounds": 5, "seed": 1, "secret_seed": 1, "checkpoint_every": 2, **options}
    return fp.Training(clients_of(), strategy or fp.inexact_admm(), privacy, **settings)  # pyright: ignore
