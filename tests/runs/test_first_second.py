"""What a first round imports: compilers and computer algebra take a second, and a plain model needs none of them."""

from __future__ import annotations

import subprocess
import sys

FIRST_ROUNDS = """
import sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import fedpriv as fp

cnn = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
data = [TensorDataset(torch.randn(20, 1, 8, 8), torch.arange(20) % 3) for _ in range(2)]
for model in (linear, mlp, cnn):
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), data)
    for unit in ("sample", "client"):
        privacy = fp.Privacy(unit=unit, noise_multiplier=9.0, clip=fp.Clip(1.0))
        training = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=2)
        next(iter(training))
        print(training.backend, *sorted({"sympy", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_first_rounds_of_plain_models_import_no_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_ROUNDS], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["linear"] * 2 + ["ghost"] * 4
