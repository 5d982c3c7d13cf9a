"""Counts the operations of a round on a device, and measures its speed: 100 clients with 60 images of MNIST's shape.

    python benchmarks/speed/device.py [--only WORDS] [--rounds 3] [--markdown FILE]

Kernels, uploads and synchronisations of a round are counted on a simulated device (`tests/helpers/counting_device.py`),
which needs no GPU; the ledger is on disk. The table also has the time of the round on the CPU, with torch's default
number of threads. With a GPU, it has the time on it, their ratio, and `busy`, the share of this time in which the GPU
computed at all: if it is small, the CPU that submits the work is the bottleneck. `most of it` is the largest part of
the computation, on the GPU or else on one CPU thread. Times are wall times: nothing else may run. `--smoke` runs tiny
sizes: its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import networkx as nx
import torch
from rows import SMOKE, Effort
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import MnistCNN, SoftmaxRegression
from fedpriv.strategies.base import Strategy

sys.path.append(str(Path(__file__).parents[2] / "tests" / "helpers"))  # location of the simulated device
from counting_device import DEVICE, CountingDevice, Counts

CLIENTS, IMAGES, REST = 100, 60, "elementwise and others"
KINDS = {  # kinds of work, by words in the names of torch's operations and of kernels; the first match counts
    "convolutions": ("conv", "fprop", "dgrad", "wgrad"),
    "matrix products": ("mm", "matmul", "dot"),
    "normalisation and pooling": ("norm", "pool"),
    "keystream": ("bitwise", "xor", "shift"),
    "copies": ("copy", "to_", "cat", "memcpy", "contiguous", "clone", "memset", "fill"),
    "indexing": ("index", "gather", "scatter", "select", "slice", "unfold", "im2col"),
}


@dataclass(frozen=True)
class Case:
    """A run with rounds to measure."""

    model: Callable[[], nn.Module]
    strategy: Strategy
    settings: dict[str, Any] = field(default_factory=dict)
    network: Callable[[int], Any] | None = None


def cycle(n: int) -> fp.Graph:
    """Returns a cycle, in which every node has two neighbours."""
    return fp.Graph(nx.cycle_graph(n))


def some_of(n: int) -> fp.Star:
    """Returns a star in which half of the clients take part in a round."""
    return fp.Star(n, fp.FixedCohort(max(n // 2, 1)))


def softmax() -> nn.Module:
    """Returns a linear model."""
    return SoftmaxRegression(784, 10)


CASES = {
    "CNN, sample level": Case(MnistCNN, fp.fedavg(0.1)),
    "CNN, sample level, Poisson batches of half": Case(MnistCNN, fp.fedavg(0.1), {"sampling": fp.Poisson(0.5)}),
    "CNN, client level": Case(MnistCNN, fp.fedavg(0.1), {"unit": "client"}),
    "CNN, a cohort of half": Case(MnistCNN, fp.fedavg(0.1), {}, some_of),
    "CNN, gradient tracking on a cycle": Case(MnistCNN, fp.gradient_tracking(), {}, cycle),
    "softmax, sample level": Case(softmax, fp.fedavg(0.1)),
    "softmax, inexact ADMM": Case(softmax, fp.inexact_admm()),
    "softmax, 5 local steps, 5 questions": Case(softmax, fp.fedavg(0.1, 5)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="rounds with one of the words")
    parser.add_argument("--rounds", type=int, default=3, help="of each run, after one that warms up")
    parser.add_argument("--markdown", type=Path, help="write the table to a file, too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    told = parser.parse_args()
    effort, gpu = SMOKE if told.smoke else Effort(), torch.cuda.is_available()
    columns = ["round", "kernels", "uploads", "synchronisations", "ms on the processor"]
    columns += ["ms on the GPU", "ratio", "busy"] if gpu else []
    lines = [f"| {' | '.join([*columns, 'most of it'])} |", "| --- " * (len(columns) + 1) + "|"]
    print("\n".join(lines))
    for name, case in CASES.items():
        if any(word in name for word in told.only):
            lines.append(f"| {' | '.join([name, *measured(case, told.rounds, effort, gpu=gpu)])} |")
            print(lines[-1], flush=True)
    lines.append("" if gpu else "\nThere is no GPU here, so no times of one.")
    print(lines[-1])
    if told.markdown:
        told.markdown.write_text("\n".join(lines) + "\n")


def measured(case: Case, rounds: int, effort: Effort, *, gpu: bool) -> list[str]:
    """Returns the numbers of one line."""
    here, kinds = seconds(case, "cpu", rounds, effort)
    cells = [*map(str, counted(case, effort).numbers), f"{1e3 * here:.0f}"]
    if gpu:
        there, kinds = seconds(case, "cuda", rounds, effort)
        cells += [f"{1e3 * there:.1f}", f"{here / there:.1f}", f"{sum(kinds.values()) / there:.0%}"]
    whole = sum(kinds.values())
    return [*cells, ", ".join(f"{kind} {spent / whole:.0%}" for kind, spent in kinds.most_common(3))]


def counted(case: Case, effort: Effort) -> Counts:
    """Returns the operation counts of the second round, with a ledger on disk."""
    with one_thread(), CountingDevice() as device, TemporaryDirectory() as folder:
        rounds = training(case, str(DEVICE), 3, effort, folder)
        next(rounds)
        before = device.counts.copy()
        next(rounds)
        return device.counts - before


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits the CPU to one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def seconds(case: Case, device: str, rounds: int, effort: Effort) -> tuple[float, Counter[str]]:
    """Returns the median seconds of a round, and the seconds of one more by kind of work."""
    run, found = training(case, device, 2 + rounds, effort), list[float]()
    for _ in range(1 + rounds):
        found.append(timed(run, device))
    on_gpu = device == "cuda"
    # threads other than this one are not observed
    with one_thread(), profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        timed(run, device)
    kinds: Counter[str] = Counter()
    for event in seen.key_averages():
        kinds[kind_of(event.key)] += 1e-6 * (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
    return median(found[1:]), kinds


def timed(run: Iterator[object], device: str) -> float:
    """Returns the seconds of a round until the device has completed it."""
    start = monotonic()
    next(run)
    if device == "cuda":
        torch.cuda.synchronize()
    return monotonic() - start


def kind_of(name: str) -> str:
    """Returns the kind of work of an operation or kernel."""
    return next(
        (kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), "elementwise and others"
    )


def training(case: Case, device: str, rounds: int, effort: Effort, folder: str | None = None) -> Iterator[object]:
    """Yields a run, round by round."""
    clients, images = effort.of(CLIENTS, 4), effort.of(IMAGES)
    torch.manual_seed(0)
    x, y = torch.randn(clients * images, 1, 28, 28), torch.arange(clients * images) % 10
    data = [TensorDataset(*pair) for pair in zip(x.split(images), y.split(images), strict=True)]
    everyone = fp.make_clients(case.model(), nn.CrossEntropyLoss(), data)
    network = case.network(clients) if case.network else None
    privacy, compute = fp.Privacy(noise_multiplier=1.0, **case.settings), fp.Compute(device=device)
    options: dict[str, Any] = {"network": network, "compute": compute, "folder": folder}
    return iter(fp.Training(everyone, case.strategy, privacy, rounds=rounds, **options))


if __name__ == "__main__":
    main()
