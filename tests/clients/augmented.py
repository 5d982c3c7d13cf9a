"""Small images of three clients, their views, and runs with them."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.population import Population
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.settings import FullBatch
from fedpriv.randomness.streams import Randomness

v2 = import_torchvision("transforms.v2")
X = torch.rand(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3
EVERY = FullBatch()
EVERYTHING = (fp.Crop(1), fp.Flip(), fp.Affine(degrees=20, shift=1, scale=0.1, shear=10))


def noisy(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x) + float(np.random.rand()) + random.random()  # noqa: NPY002


def tables(x: Tensor = X) -> list[TensorDataset]:
    return [TensorDataset(x[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))


def population(augmentation: Augmentation | None, x: Tensor = X, datasets=None, chunk: int = 8192) -> Population:
    clients = fp.make_clients(model(), nn.CrossEntropyLoss(), datasets or tables(x), augmentation=augmentation)
    return Population(clients, chunk=chunk)


def views(people: Population, round_index: int = 0, index: int = 0, sampling=EVERY, cohort=(0, 1, 2)):
    """What an answer is computed on: each example's views, by its place among all."""
    draws = BatchSampler(people, Randomness(0, 1), 1.0)
    draws.begin_round(round_index, torch.tensor(cohort))
    found: dict[int, Tensor] = {}
    for batch in draws.views(sampling, index):
        for client, example in batch.mask.nonzero().tolist():
            found[int(batch.examples[client, example])] = batch.inputs[client, example]
    return found
