"""Measures the cost of noise that cancels between pairs of clients, relative to local noise in the same run.

    python benchmarks/speed/pairs.py [--clients N] [--dim D]

Processor time of one thread for the noise of one query: drawn, added and rounded. Smallest of a few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time

import torch
from torch import Tensor

from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import Gaussian, add_noise
from fedpriv.privacy.normal_combinations import NormalCombinations
from fedpriv.privacy.pair_noise import draw_pair_noise
from fedpriv.privacy.pairwise import Complete, Pairwise, RandomRegular, Secrets
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

RANDOM = Randomness(0, run="benchmark")
RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
REPEATS = 7


@dataclass(frozen=True)
class Gaussian64(Gaussian):
    """The same noise, in a class unknown to fedpriv: rounded in float64."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dim", type=int, default=29_034, help="parameters: those of the MNIST CNN, unless given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, sparse = torch.zeros(options.clients, options.dim), RandomRegular(8)
    ways: dict[str, Callable[[], object]] = {
        "local": lambda: noised(rows, Gaussian(), None),
        "complete": lambda: noised(rows, Gaussian(), Complete()),
        "complete, float64": lambda: noised(rows, Gaussian64(), Complete()),
        "random regular, degree 8": lambda: noised(rows, Gaussian(), sparse),
        "degree 8, float64": lambda: noised(rows, Gaussian64(), sparse),
    }
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = process_time()
            way()
            seconds[name] = min(seconds[name], process_time() - start)
    for name, taken in seconds.items():
        print(f"{name:26}{1e3 * taken:8.0f} ms {taken / seconds['local']:6.2f}")


def noised(rows: Tensor, mechanism: Gaussian, secrets: Secrets | None) -> Release:
    """Returns rows with their individual noise and their pairs' noise."""
    clients = range(len(rows))
    if secrets is None:
        return add_noise(rows, [1.0] * len(rows), mechanism, RECORD, RANDOM, clients)
    pairs = Pairwise(1, 1.0, secrets).pairs(len(rows))

    def noise_of_pairs(round_index: int, some: Sequence[int]) -> NormalCombinations | None:
        return draw_pair_noise(pairs, RANDOM, round_index, 0, clients, some, rows.shape[1])

    return add_noise(rows, [1.0] * len(rows), mechanism, RECORD, RANDOM, clients, pair_noise=noise_of_pairs)


if __name__ == "__main__":
    main()
