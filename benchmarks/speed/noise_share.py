"""Measures the share of noise in the time of a round: a CNN and an LSTM, with one client and with twenty.

    python benchmarks/speed/noise_share.py [--rounds 25]

Smallest processor time of one thread, for rounds and for the noise in them, which is drawn, added and rounded exactly:
independent noise in each round, and noise over time (`BSR`), which cancels between the public batches of an epoch.
"""

from __future__ import annotations

import argparse
from time import process_time
from typing import Any

import torch
from sequence_nets import Recurrent
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import MnistCNN
from fedpriv.privacy.release.local import LocalRelease

BATCH = 64


class NoiseClock:
    """A context that sums up the processor time of all noise."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._add_noise = LocalRelease.add_noise

    def __enter__(self) -> NoiseClock:
        add_noise = self._add_noise

        def timed(scheme: LocalRelease, *args: Any, **named: Any) -> Any:
            start = process_time()
            release = add_noise(scheme, *args, **named)
            self.seconds += process_time() - start
            return release

        LocalRelease.add_noise = timed
        return self

    def __exit__(self, *_: object) -> None:
        LocalRelease.add_noise = self._add_noise


def measured(model: nn.Module, inputs: Tensor, clients: int, rounds: int, *, over_time: bool) -> tuple[float, float]:
    """Returns milliseconds of a round, and of its noise."""
    targets = torch.randint(0, 10, (len(inputs),))
    data = [TensorDataset(*pair) for pair in zip(inputs.chunk(clients), targets.chunk(clients), strict=True)]
    sampling: fp.Poisson | fp.Cyclic = fp.Poisson(min(BATCH * clients / len(inputs), 1.0))
    noise: fp.Independent | fp.BSR = fp.Independent()
    if over_time:
        blocks = max(len(inputs) // (BATCH * clients), 2)
        sampling, noise = fp.Cyclic(blocks), fp.BSR(blocks)
    privacy = fp.Privacy(noise_multiplier=1.0, clip=fp.Clip(1.0), delta=1e-5, sampling=sampling, noise=noise)
    everyone = fp.make_clients(model, nn.CrossEntropyLoss(), data)
    training = iter(fp.Training(everyone, fp.fedavg(0.1), privacy, rounds=rounds + 1))
    next(training)
    whole: list[float] = []
    in_noise: list[float] = []
    for _ in range(rounds):
        with NoiseClock() as clock:
            start = process_time()
            next(training)
            whole.append(process_time() - start)
        in_noise.append(clock.seconds)
    return 1e3 * min(whole), 1e3 * min(in_noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="after one that warms up")
    parser.add_argument("--examples", type=int, default=2000, help="of all clients together")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    subjects: dict[str, tuple[nn.Module, Tensor]] = {
        "CNN 29 034": (MnistCNN(), torch.randn(options.examples, 1, 28, 28)),
        "LSTM 32 -> 64, 40 steps": (
            Recurrent(nn.LSTM(32, 64, batch_first=True)),
            torch.randn(options.examples, 40, 32),
        ),
    }
    for name, (model, inputs) in subjects.items():
        for clients in (1, 20):
            for over_time, kind in ((False, "each round"), (True, "over time ")):
                whole, noise = measured(model, inputs, clients, options.rounds, over_time=over_time)
                times = f"{whole:8.2f} ms, noise {noise:6.2f} ms  {noise / whole:6.1%}"
                print(f"{name:<24} {clients:>3} clients, {kind}  {times}")


if __name__ == "__main__":
    main()
