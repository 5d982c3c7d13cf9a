"""Measures the cost of writing a round's records to disk before any result that depends on them leaves the process.

    python benchmarks/speed/durability.py --folder DIR

A round of FedSGD on the MNIST CNN (29 034 parameters, 100 clients, about 2000 examples in all) on random data, with its
time spent waiting for the disk that holds DIR. The target is at most 3 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import MnistCNN
from fedpriv.storage import files

EXAMPLES, RATE = 600, 0.033


class Timed(files.Disk):
    """A disk that counts the seconds of waiting for it."""

    seconds = 0.0

    def sync(self, fd: int) -> None:
        start = perf_counter()
        super().sync(fd)
        self.seconds += perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk in question")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory(dir=options.folder) as folder:
        waits, rounds = measure(Path(folder) / "run", options.clients, options.rounds)
    print(f"round {median(rounds) * 1e3:.0f} ms, of which waiting for the disk {median(waits) * 1e3:.2f} ms", end=" ")
    print(f"(at most {max(waits) * 1e3:.1f}): {median(waits) / median(rounds):.2%}")


def measure(folder: Path, clients: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns waiting and total seconds of each round but the first; there are no checkpoints in between."""
    disk = files.disk = Timed()
    draws = torch.Generator().manual_seed(0)
    shape = (EXAMPLES, 1, 28, 28)
    datasets = [TensorDataset(torch.rand(shape, generator=draws), torch.arange(EXAMPLES) % 10) for _ in range(clients)]
    everyone = fp.make_clients(MnistCNN(), nn.CrossEntropyLoss(), datasets)
    privacy = fp.Privacy(noise_multiplier=50.0, trust=fp.SecureAggregation(clients), sampling=fp.Poisson(RATE))
    training = fp.Training(
        everyone, fp.fedavg(0.1), privacy, rounds=rounds + 2, folder=folder, checkpoint_every=rounds + 2
    )
    waits: list[float] = []
    seconds: list[float] = []
    reports = iter(training)
    next(reports)
    for _ in range(rounds):
        before, start = disk.seconds, perf_counter()
        next(reports)
        waits.append(disk.seconds - before)
        seconds.append(perf_counter() - start)
    return waits, seconds


if __name__ == "__main__":
    main()
