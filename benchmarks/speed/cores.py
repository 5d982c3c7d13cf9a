"""Measures the benefit of several cores: rounds of clients with 60 images of MNIST's shape each and a CNN.

    python benchmarks/speed/cores.py [--threads 2] [--rounds 5] [--clients 100] [--insist] [--markdown FILE]

Runs with one thread and with several alternate in one process, measured in wall time, so nothing else may run. The
ratio is `cores / work`: the number of busy cores, over the increase in processor time of the same round on them (cores
that share caches, memory or a physical core slow each other down). `free` is the number of idle cores meanwhile: if
`cores + free` is less than the total, something else ran, and the ratio is too small. `faults` are pages of fresh
memory, in thousands per round. `--smoke` runs tiny sizes: its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import torch
from rows import SMOKE, Effort
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import MnistCNN

CLIENTS, IMAGES = 100, 60
KINDS: dict[str, dict[str, Any]] = {
    "sample level, all examples": {},
    "sample level, Poisson batches of half": {"sampling": fp.Poisson(0.5)},
    "client level": {"unit": "client"},
}
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Cost:
    """Cost of one round, or a clock reading before it.

    Attributes:
        wall: Seconds on the wall.
        busy: Seconds of processor time of this process.
        free: Seconds of idle processor time; nan if the system does not report it.
        faults: Number of fresh memory pages.
    """

    wall: float
    busy: float
    free: float
    faults: float

    @classmethod
    def now(cls) -> Cost:
        """Returns the cost so far."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        free = int(_STAT.read_text().split()[4]) / os.sysconf("SC_CLK_TCK") if _STAT.exists() else float("nan")
        return cls(monotonic(), used.ru_utime + used.ru_stime, free, used.ru_minflt)

    def since(self, before: Cost) -> Cost:
        """Returns the cost in between."""
        return Cost(*(b - a for a, b in zip(astuple(before), astuple(self), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="so many against one")
    parser.add_argument("--rounds", type=int, default=5, help="of each run, after one that warms up")
    parser.add_argument("--only", default="", help="kinds of rounds with this in their names")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--insist", action="store_true", help="torch's threads share little work, too")
    parser.add_argument("--markdown", type=Path, help="write the table to a file, too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    told = parser.parse_args()
    effort = SMOKE if told.smoke else Effort()
    columns = "round", "s, one thread", f"s, {told.threads} threads", "ratio", "cores", "work", "free", "faults"
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    print("\n".join(lines))
    for kind in KINDS:
        if told.only in kind:
            lines.append(
                line(
                    kind,
                    compared(KINDS[kind], (1, told.threads), told.rounds, told.clients, effort, insist=told.insist),
                )
            )
            print(lines[-1], flush=True)
    if told.markdown:
        told.markdown.write_text("\n".join(lines) + "\n")


def compared(
    settings: dict[str, Any],
    counts: tuple[int, int],
    rounds: int,
    clients: int,
    effort: Effort,
    *,
    insist: bool = False,
) -> list[Cost]:
    """Returns the median cost of a round for each number of threads."""
    runs = [training(settings, 1 + rounds, effort.of(clients), effort, count if insist else None) for count in counts]
    costs: list[list[Cost]] = [[] for _ in counts]
    for _ in range(1 + rounds):
        for count, run, found in zip(counts, runs, costs, strict=True):
            torch.set_num_threads(count)
            before = Cost.now()
            next(run)
            found.append(Cost.now().since(before))
    return [Cost(*(median(part) for part in zip(*map(astuple, found[1:]), strict=True))) for found in costs]


def training(
    settings: dict[str, Any], rounds: int, clients: int, effort: Effort, threads: int | None
) -> Iterator[object]:
    """Returns a run, to iterate round by round."""
    images = effort.of(IMAGES)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients * images, 1, 28, 28, generator=draw), torch.arange(clients * images) % 10
    data = [TensorDataset(*pair) for pair in zip(x.split(images), y.split(images), strict=True)]
    everyone = fp.make_clients(MnistCNN(), nn.CrossEntropyLoss(), data)
    privacy = fp.Privacy(noise_multiplier=1.0, **settings)
    compute = fp.Compute(device="cpu", threads=threads)
    return iter(fp.Training(everyone, fp.fedavg(0.1), privacy, rounds=rounds, compute=compute))


def line(kind: str, costs: list[Cost]) -> str:
    """Returns one line of the table."""
    one, several = costs
    values = f"{one.wall:.2f}", f"{several.wall:.2f}", f"{one.wall / several.wall:.2f}"
    parts = several.busy / several.wall, several.busy / one.busy, several.free / several.wall
    faults = f"{one.faults / 1e3:.0f}, {several.faults / 1e3:.0f}"
    return f"| {' | '.join((kind, *values, *(f'{part:.2f}' for part in parts), faults))} |"


if __name__ == "__main__":
    main()
