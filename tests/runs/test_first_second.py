"""Imports of a first round: plain models need no compiler and no computer algebra, which take a second to import."""

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


SAMPLED = """
import sys
import torch
from torch import nn
import fedpriv as fp

data = torch.utils.data.TensorDataset(torch.randn(20, 1, 8, 8), torch.arange(20) % 3)
clients = fp.make_clients(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.CrossEntropyLoss(), [data])
privacy = fp.Privacy(noise_multiplier=2.0, clip=fp.Clip(1.0), sampling=fp.Poisson(0.5), delta=1e-5)
report = next(iter(fp.Training(clients, fp.fedavg(0.1), privacy, rounds=2)))
assert 0 < report.epsilon < 10
print(*sorted({"scipy.stats", "scipy.signal", "scipy.optimize"} & sys.modules.keys()))

from fedpriv.privacy.accounting.dp_accounting_pld import dpa

print(f"{dpa.from_gaussian_mechanism(1.0).get_epsilon_for_delta(1e-5):.9f}")
import scipy.stats
from scipy import signal

print(type(scipy.stats).__name__, type(sys.modules["scipy.stats"]).__name__, signal.__name__)
print(f"{scipy.stats.norm.cdf(0.0)} {signal.fftconvolve([1.0, 2.0], [3.0])[1]:.1f}")
"""


def test_sampled_round_accounted_without_slow_scipy() -> None:
    """dp-accounting imports the modules when it calls them; other code gets the real modules."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SAMPLED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    slow, epsilon, kinds, values = done.stdout.splitlines()
    assert not slow
    unchanged = "from dp_accounting.pld import privacy_loss_distribution as dpa\n"
    unchanged += "print(f'{dpa.from_gaussian_mechanism(1.0).get_epsilon_for_delta(1e-5):.9f}')"
    wanted = subprocess.run([sys.executable, "-c", unchanged], capture_output=True, text=True, check=True)
    assert epsilon == wanted.stdout.strip()
    assert kinds == "module module scipy.signal"
    assert values == "0.5 6.0"
