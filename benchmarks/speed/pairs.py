"""What noise costs that cancels between pairs of clients, over the noise of trust: local, in the same run.

    python benchmarks/speed/pairs.py [--clients N] [--dim D]

Processor time of one thread for the noise of one answer: drawn, added and rounded. Least of a few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import torch
from torch import Tensor

from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import Gaussian, add_noise
from fedpriv.privacy.pair_noise import of_pairs, with_pair_noise
from fedpriv.privacy.pairwise import Complete, Pairwise, RandomRegular, Secrets
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

RANDOM = Randomness(0, run="benchmark")
RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dim", type=int, default=29_034, help="parameters: those of the MNIST CNN, unless given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, secrets = torch.zeros(options.clients, options.dim), RandomRegular(8)
    ways: dict[str, Callable[[], object]] = {
        "local": lambda: noised(rows),
        "complete": lambda: noised(with_pairs(rows, Complete())),
        "random regular, degree 8": lambda: noised(with_pairs(rows, secrets)),
        "degree 8, pair by pair": lambda: noised(by_pairs(rows, secrets)),
    }
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = process_time()
            way()
            seconds[name] = min(seconds[name], process_time() - start)
    for name, taken in seconds.items():
        print(f"{name:26}{1e3 * taken:8.0f} ms {taken / seconds['local']:6.2f}")


def noised(rows: Tensor) -> Release:
    return add_noise(rows, [1.0] * len(rows), Gaussian(), RECORD, RANDOM, range(len(rows)))


def with_pairs(rows: Tensor, secrets: Secrets) -> Tensor:
    pairs = Pairwise(1, 1.0, secrets).pairs(len(rows))
    return with_pair_noise(rows, [1.0] * len(rows), pairs, RECORD, RANDOM, range(len(rows)))


def by_pairs(rows: Tensor, secrets: Secrets) -> Tensor:
    """From the stream of every pair, as many owners would."""
    edges = secrets.edges(len(rows)) or ()
    return of_pairs(RANDOM, 0, 0, range(len(rows)), edges, rows.shape[1]).add_(rows)


if __name__ == "__main__":
    main()
