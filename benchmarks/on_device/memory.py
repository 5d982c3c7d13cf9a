"""Stage `memory`: the time of noise, and the memory of rounds at the sizes that a GPU is used for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import torch
from on_device.bench import Bench, Check, Facts, in_turns, peak_megabytes
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import MnistCNN
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

RANDOM = Randomness(0, secret_seed=3, run="the speed of noise")
RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
SIZES = ((1, 1_000_000), (100, 29_034), (1000, 10_000), (1, 50_000_000))


def noise(mechanism: Any, bench: Bench) -> Facts:
    """Returns nanoseconds per entry of noise: drawn, added and rounded, on the device and on one CPU thread."""
    facts: Facts = {}
    for count, dim in SIZES[: 2 if bench.small else None]:
        count, dim = bench.of(count, min(count, 3)), bench.of(dim, 100)
        bounded = torch.zeros(count, dim, dtype=torch.float64, device=bench.device)

        def step(bounded: Tensor = bounded, count: int = count) -> object:
            return add_noise(bounded, [1.0] * count, mechanism, RECORD, RANDOM, list(range(count)))

        steps: dict[str, Callable[[], object]] = {"there": step}
        if count * dim <= 4_000_000:
            steps["here"] = partial(step, bounded.cpu())
        found = in_turns(steps, 2.0, bench)
        facts[f"{count} x {dim}"] = {
            **{f"ns {where}": round(1e6 * ms / (count * dim), 3) for where, ms in found.items()},
            "peak_MiB": peak_megabytes(step, bench),
        }
    return facts


def wide(clients: int, examples: int, width: int) -> tuple[nn.Module, list[TensorDataset]]:
    """Returns an MLP and synthetic images for it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
    x, y = torch.randn(clients * examples, 1, 28, 28), torch.arange(clients * examples) % 10
    return model, [TensorDataset(*pair) for pair in zip(x.split(examples), y.split(examples), strict=True)]


def large_round(name: str, settings: dict[str, Any], bench: Bench) -> Facts:
    """Returns the seconds and peak GPU memory of a round with a thousand clients and a million parameters."""
    torch.manual_seed(0)
    model, data = wide(bench.of(1000, 4), bench.of(8, 3), bench.of(1258, 5))
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), data)
    privacy = fp.Privacy(noise_multiplier=1.0, **settings)
    compute = fp.Compute(device=str(bench.device))
    strategy = fp.inexact_admm() if name == "ADMM" else fp.fedavg(0.1)
    training = fp.Training(clients, strategy, privacy, rounds=3, compute=compute)
    run = iter(training)
    next(run)
    facts: Facts = {"clients": len(data), "parameters": training.population.dim}
    facts["peak_MiB"] = peak_megabytes(lambda: next(run), bench)
    start = monotonic()
    next(run)
    bench.wait()
    return facts | {"seconds_a_round": round(monotonic() - start, 3)}


def memory_of_rounds(bench: Bench) -> Facts:
    """Returns the peak GPU memory of a round of the CNN."""
    facts: Facts = {}
    for unit in ("sample", "client"):
        x, y = torch.randn(bench.of(6000, 12), 1, 28, 28), torch.arange(bench.of(6000, 12)) % 10
        each = bench.of(60, 4)
        data = [TensorDataset(*pair) for pair in zip(x.split(each), y.split(each), strict=True)]
        clients = fp.make_clients(MnistCNN(), nn.CrossEntropyLoss(), data)
        compute = fp.Compute(device=str(bench.device))
        run = iter(
            fp.Training(clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0, unit=unit), rounds=3, compute=compute)
        )
        next(run)
        facts[unit] = {"peak_MiB": peak_megabytes(lambda run=run: next(run), bench)}
    return facts


CHECKS = [
    Check("Gaussian noise", partial(noise, fp.Gaussian()), 12),
    Check("a million parameters, sums only", partial(large_round, "sums", {"trust": fp.Central()}), 8),
    Check("a million parameters, rows", partial(large_round, "rows", {}), 12),
    Check("memory of rounds", memory_of_rounds, 5),
    Check("Laplace noise", partial(noise, fp.Laplace()), 12),
    Check("a million parameters, ADMM", partial(large_round, "ADMM", {}), 15),
]
