"""Measures the overhead of a round beyond its arithmetic: Python, torch's dispatch, the report and the disk.

    python benchmarks/speed/small_rounds.py [--folder DIR] [--rounds 400] [--only WORD] [--count]

Contenders alternate, one round each, measured by the processor time of one thread; ratios are of medians, over the
plain step: drawing a batch at random and computing its mean gradient. `oracle` computes one query, `Training` a whole
round in memory; `fixed ms` is its excess over the plain step. The last two columns divide rounds in a folder on the
disk that holds DIR by rounds in memory, in turns of a hundred: with an `fsync` each, or shared by short rounds as in
`train`. These means include the tight epsilon of the reports, a dozen times a run; they are also given in wall time,
with the number of rounds that shared a sync. On a busy machine rounds take longer, and fewer of them share one.

`a few numbers` is logistic regression on 8 examples of 4 numbers: nothing but the fixed cost.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.storage import files

TURN = 100  # rounds in a folder
WORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "a few numbers": (lambda: nn.Linear(4, 2), (4,), 8, 4),
    "softmax 7 850": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), (1, 28, 28), 10_000, 64),
    "MLP 1e6": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 1100), nn.ReLU(), nn.Linear(1100, 110), nn.Linear(110, 10)),
        (1, 28, 28),
        10_000,
        64,
    ),
}
"""By name: the model, the shape of an input, the number of examples, and the expected batch."""


def training(work: str, rounds: int, folder: Path | None = None) -> fp.Training:
    """Returns a run with one client; its first checkpoint is its last."""
    make_model, shape, count, batch = WORKS[work]
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(count, *shape), torch.arange(count) % 2)
    clients = fp.make_clients(make_model(), nn.CrossEntropyLoss(), [data])
    privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(batch / count))
    return fp.Training(clients, fp.fedavg(0.01), privacy, rounds=rounds, folder=folder, checkpoint_every=10**6)


def plain_step(work: str) -> Callable[[], object]:
    """Returns the step without privacy."""
    make_model, shape, count, batch = WORKS[work]
    model = make_model()
    inputs, targets = torch.randn(count, *shape), torch.arange(count) % 2

    def step() -> None:
        chosen = (torch.rand(count) < batch / count).nonzero()[:, 0]
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()

    return step


def oracle_step(work: str, rounds: int) -> Callable[[], object]:
    """Returns a function that computes one query of the oracle, in a new round each time."""
    run = training(work, rounds)
    received = run.progress.received
    indices = iter(range(rounds))

    def step() -> None:
        run.oracle.begin_round(next(indices), torch.arange(1), received)
        run.oracle.gradient(received)

    return step


def in_turns(steps: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """Returns the median processor seconds of each step."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(turns):
        for step, seconds in zip(steps, times, strict=True):
            start = process_time()
            step()
            seconds.append(process_time() - start)
    return [median(seconds[len(seconds) // 20 :]) for seconds in times]


def one_by_one(groups: Iterable[Sequence[fp.RoundReport]]) -> Iterator[fp.RoundReport]:
    for reports in groups:
        yield from reports


class CountingDisk(files.Disk):
    """Counts the waits for the disk."""

    syncs = 0

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.syncs += 1


@dataclass
class Cost:
    """The cost of rounds: seconds of a round, for each turn, and the total number of waits for the disk."""

    busy: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    syncs: int = 0

    def over(self, other: Cost) -> str:
        """Formats the ratios of two costs."""
        busy, wall = median(self.busy) / median(other.busy), median(self.wall) / median(other.wall)
        return f"{busy:.2f} ({wall:.2f} on the wall)"


def in_folders(work: str, rounds: int, folder: Path) -> list[Cost]:
    """Returns the cost of rounds in memory, in a folder with a sync each, and with shared syncs."""
    disk = files.disk = CountingDisk()
    in_memory = iter(training(work, rounds))
    each = iter(training(work, rounds, folder / "each"))
    shared = one_by_one(training(work, rounds, folder / "shared").in_groups())
    contenders = [in_memory, each, shared]
    costs = [Cost() for _ in contenders]
    for _ in range(max(rounds // TURN, 1)):
        for contender, cost in zip(contenders, costs, strict=True):
            busy, wall, syncs = process_time(), perf_counter(), disk.syncs
            made = len(list(islice(contender, min(TURN, rounds))))
            cost.busy.append((process_time() - busy) / made)
            cost.wall.append((perf_counter() - wall) / made)
            cost.syncs += disk.syncs - syncs
    return costs


class Operations(TorchDispatchMode):
    """Counts tensor operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(work: str) -> str:
    """Formats the numbers of calls and tensor operations in a round of `Training`, measured without interference."""
    run = iter(training(work, 40))
    for _ in range(20):
        next(run)
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    next(run)
    sys.setprofile(None)
    with Operations() as operations:
        next(run)
    return (
        f"{work}: {calls['call']} Python calls, {calls['c_call']} of C functions, {operations.count} tensor operations"
    )


def main() -> None:
    """Prints the ratios, or the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk in question")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--only", default="", metavar="WORD", help="works with this in their names")
    parser.add_argument("--count", action="store_true", help="count calls in place of time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.count:
        print("\n".join(counted(work) for work in WORKS if options.only in work))
        return
    columns = ("round of one client", "oracle", "`Training`", "`Training` / oracle", "fixed ms")
    print(f"| {' | '.join(columns)} | sync each / memory | shared / memory | rounds a sync |")
    print("| --- " * 8 + "|")
    for work in WORKS:
        if options.only not in work:
            continue
        rounds = options.rounds
        run = iter(training(work, rounds))
        steps = [plain_step(work), oracle_step(work, rounds), lambda: next(run)]  # noqa: B023 - called in this turn
        plain, oracle, whole = in_turns(steps, rounds)
        with TemporaryDirectory(dir=options.folder) as folder:
            memory, each, shared = in_folders(work, rounds, Path(folder))
        ratios = [each.over(memory), shared.over(memory), f"{rounds / shared.syncs:.0f}"]
        fixed = f"{1e3 * (whole - plain):.2f}"
        cells = [work, f"{oracle / plain:.2f}", f"{whole / plain:.2f}", f"{whole / oracle:.2f}", fixed, *ratios]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
