"""Small runs, in Python and by commands, of which something is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.models import SoftmaxRegression

CONFIG = Path(__file__).parents[1] / "run.yaml"
SMALL = ["data.partition.n_clients=3", "rounds=20", "log.tensorboard=false", "log.evaluate_every=20"]


def clients(n_clients: int = 3, declared: Sequence[int | None] = (None, None, None)) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.rand(40, 4, generator=draw), torch.arange(40) % 2) for _ in range(n_clients)]
    made = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), data)
    return [
        fp.Client(client.model, client.loss, client.loader, public_size=size)
        for client, size in zip(made, declared, strict=False)
    ]


def cli(*words: str, code: int = 0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.stderr
    return done
