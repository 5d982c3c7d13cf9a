"""Small finished runs that are extended by further rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from plain_torch import rows
from torch import nn

import fedpriv as fp

ROUNDS = 4


def training(folder: Path | None, rounds: int, **changed: Any) -> fp.Training:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(changed.pop("data", 0))
    data = [rows(torch.randn(20, 4, generator=draw), torch.arange(20) % 3) for _ in range(2)]
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data, changed.pop("problem", None))
    strategy = changed.pop("strategy", fp.fedavg(0.5))
    epsilon, sampling = changed.pop("epsilon", 2.0), changed.pop("sampling", fp.Poisson(0.2))
    privacy = changed.pop("privacy", fp.Privacy(epsilon=epsilon, sampling=sampling))
    return fp.Training(clients, strategy, privacy, rounds=rounds, folder=folder, **changed)


def run(folder: Path | None, rounds: int, **changed: Any) -> fp.Result:
    made = training(folder, rounds, **changed)
    for _ in made:
        pass
    return made.result()
