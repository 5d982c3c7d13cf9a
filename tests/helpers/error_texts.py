"""What a refused call answers, and small clients and runs to call with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv import ConfigError

EXAMPLES = 200


def dataset(n: int = EXAMPLES) -> TensorDataset:
    return TensorDataset(torch.randn(n, 4, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 2)


def clients() -> list[fedpriv.Client]:
    return fedpriv.make_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), [dataset(), dataset()])


def error_of(typed: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        typed()
    return str(caught.value)


def run(**typed: Any) -> object:
    usual: dict[str, Any] = {
        "clients": clients(),
        "strategy": fedpriv.fedavg(0.1),
        "privacy": fedpriv.Privacy(epsilon=3.0),
        "rounds": 2,
        "compute": fedpriv.Compute(device="cpu"),
    }
    return fedpriv.train(**{**usual, **typed})


# --- one thing where another is meant ---------------------------------------------------------------------------------

CNN = nn.Linear(4, 2)
