"""A million clients: client-level FedAvg with a trusted server and secret cohorts of about 1 000, softmax on 28 x 28.

    python benchmarks/speed/million.py [--rounds 100] [--markdown FILE]

The same cohort is drawn from 10 000 and from 1 000 000 lazy clients, with examples that are generated when they are
read. Each population runs in a separate process with one torch thread: seconds to set up, processor time of a round,
peak memory. The last line is the ratio of the two rounds, which would be 1 if the population had no cost. `--smoke`
runs tiny sizes in this process: its numbers are meaningless.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import Any

import torch
from memory import peak_megabytes
from rows import SMOKE, Effort
from subprocesses import apart
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import Loss, SoftmaxRegression, cross_entropy

COHORT, FEATURES, CLASSES = 1000, 784, 10
POPULATIONS = (10_000, 1_000_000)


@dataclass(frozen=True)
class Cost:
    """The cost of one population.

    Attributes:
        clients: Number of clients.
        setup: Seconds until the first round can begin.
        round: Median milliseconds of processor time of a round, without the first.
        megabytes: Peak memory of the process.
        epsilon: Epsilon of the whole run, at delta 1e-7.
    """

    clients: int
    setup: float
    round: float
    megabytes: float
    epsilon: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="of each run")
    parser.add_argument("--markdown", type=Path, help="write the table to a file, too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in this process")
    told = parser.parse_args()
    effort = SMOKE if told.smoke else Effort()
    populations, cohort = ((40, 80), 20) if told.smoke else (POPULATIONS, COHORT)
    found = [Cost(**apart(run, n, cohort, told.rounds, effort=effort)) for n in populations]
    lines = table(found)
    print("\n".join(lines))
    if told.markdown:
        told.markdown.write_text("\n".join(lines) + "\n")


def table(found: list[Cost]) -> list[str]:
    """Returns the lines of the table."""
    lines = ["| clients | set-up, s | ms a round | MB | epsilon |", "|---|---|---|---|---|"]
    lines += [f"| {c.clients:,} | {c.setup:.1f} | {c.round:.0f} | {c.megabytes:.0f} | {c.epsilon:.3g} |" for c in found]
    return [*lines, f"| ratio | | {found[-1].round / found[0].round:.2f} | | |"]


def run(clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """Returns the cost of one population."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start = monotonic()
    everyone = fp.lazy_clients(SoftmaxRegression(FEATURES, CLASSES), Loss(cross_entropy), load, sizes(clients))
    trust = fp.Central(cohort / clients)
    privacy = fp.Privacy(noise_multiplier=1.0, delta=1e-7, unit="client", noise_on="message", trust=trust)
    training = fp.Training(everyone, fp.fedavg(0.1), privacy, rounds=rounds, seed=0)
    setup, laps = monotonic() - start, [process_time()]
    for _ in training:
        laps.append(process_time())
    each = [after - before for before, after in pairwise(laps)]
    peak = peak_megabytes()
    return vars(Cost(clients, setup, median(each[1:] or each) * 1e3, peak, training.spent().epsilon))


def sizes(clients: int) -> list[int]:
    """Returns from 10 to 20 examples per client."""
    return [10 + client % 11 for client in range(clients)]


def load(client: int) -> TensorDataset:
    """Returns numbers that are determined by the client's number."""
    draw, size = torch.Generator().manual_seed(client), 10 + client % 11
    inputs = torch.randn(size, FEATURES, generator=draw)
    return TensorDataset(inputs, torch.randint(CLASSES, (size,), generator=draw))


if __name__ == "__main__":
    import million  # another process finds `run` by this name

    million.main()
