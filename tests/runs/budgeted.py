"""Runs that draw on a lifetime budget, and count how often their examples are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fedpriv as fp
from fedpriv.privacy.budget import Budget
from fedpriv.strategies.base import Strategy

LOSS = nn.CrossEntropyLoss()


class Counted(Dataset[Any]):
    """Examples that count how often they are read."""

    reads: ClassVar[int] = 0

    def __init__(self, client: int) -> None:
        made = torch.Generator().manual_seed(client)
        self._x, self._y = torch.rand(8, 4, generator=made), torch.randint(2, (8,), generator=made)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        Counted.reads += 1
        return self._x[index], self._y[index]


def clients() -> list[fp.Client]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return [fp.Client(model, LOSS, DataLoader(Counted(i))) for i in range(2)]


def training(path: Path, folder: Path | None = None, strategy: Strategy | None = None, **more: Any) -> fp.Training:
    given = {"noise_multiplier": 8.0, "budget": str(path), **more.pop("privacy", {})}
    settings = {"rounds": 4, "seed": 0, "checkpoint_every": 2, "folder": folder, **more}
    return fp.Training(clients(), strategy or fp.fedavg(0.5), fp.Privacy(**given), **settings)


def stopped(budget: Budget, folder: Path, after: int = 3, **more: Any) -> None:
    """A run that is left after so many rounds."""
    run = training(budget.path, folder, **more)
    for report in run:
        if report.round == after:
            break
    assert run.folder is not None
    run.folder.close()
