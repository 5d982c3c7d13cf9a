"""Measures the growth of a round's time and memory with clients, parameters and examples, as slopes in log-log.

    python benchmarks/speed/scaling.py [--picture FILE] [--markdown FILE] [--only NAME ...]

A slope of 1 means that twice as much work takes twice as long. Each size runs in a separate process with one thread:
processor time of a round (a private gradient of every client, clipped per example, noised per client; full batches) and
the peak memory of the process, minus the memory of an idle process. `slope` is fitted to all sizes, `last` to the two
largest, where fixed costs no longer hide the cost of a further client, parameter or example. `--smoke` runs tiny sizes
in this process: its numbers are meaningless.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch
from matplotlib.figure import Figure
from memory import peak_megabytes
from nets import mlp
from rows import SMOKE, Effort
from subprocesses import apart
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import Loss, SoftmaxRegression, cross_entropy

ROUNDS = 5
MOST = 1_000_000  # from this size on, two rounds are enough
HEADER = ("size", "ms a round", "us each", "against the first", "MB", "KB each")


@dataclass(frozen=True)
class Axis:
    """A growing quantity, its sizes, and the work."""

    name: str
    sizes: tuple[int, ...]
    work: str


AXES = (
    Axis(
        "clients", (10, 100, 1_000, 10_000, 100_000, 1_000_000), "lazy clients with 6 examples, softmax on 16 numbers"
    ),
    Axis("parameters", (10_000, 100_000, 1_000_000, 10_000_000), "MLP on 28 x 28 pixels, one client of 16 examples"),
    Axis("examples", (1_000, 10_000, 100_000, 1_000_000), "softmax on 64 numbers, one client"),
)


@dataclass(frozen=True)
class Cost:
    """The cost of one size."""

    size: int
    ms: float
    megabytes: float


def main() -> None:
    """Measures, prints, and draws if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[axis.name for axis in AXES], metavar="NAME", help="of an axis")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the tables")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, everything in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    effort = SMOKE if options.smoke else Effort()
    found = {axis: costs(axis, effort) for axis in AXES if axis.name in options.only}
    lines = [line for axis, of in found.items() for line in table(axis, of)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.picture:
        draw(found, options.picture)


def costs(axis: Axis, effort: Effort) -> list[Cost]:
    """Returns the cost of every size, without the memory of an idle process."""
    empty = apart(run, axis.name, 0, effort=effort)[1]
    sizes = (axis.sizes[0], 2 * axis.sizes[0]) if effort.smoke else axis.sizes
    measured = [(size, *apart(run, axis.name, size, effort=effort)) for size in sizes]
    return [Cost(size, ms, max(megabytes - empty, 0.1)) for size, ms, megabytes in measured]


def run(axis: str, size: int) -> tuple[float, float]:
    """Returns a later round's median milliseconds, and this process's peak megabytes; no work for size 0."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    laps: list[float] = []
    if size:
        model, inputs, targets = work(axis, size)
        clients = fp.lazy_clients(
            model, Loss(cross_entropy), lambda i: TensorDataset(inputs[i], targets[i]), [inputs.shape[1]] * len(inputs)
        )
        privacy, rounds = fp.Privacy(noise_multiplier=1.0, delta=1e-9), 1 + (ROUNDS if size < MOST else 2)
        for _ in fp.Training(clients, fp.fedavg(0.1), privacy, rounds=rounds):
            laps.append(process_time())
    took = median([1e3 * (after - before) for before, after in pairwise(laps)] or [0.0])
    # Linux counts in KiB
    return took, peak_megabytes()


def work(axis: str, size: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Returns a model, and inputs `[clients, examples, ...]` with targets."""
    if axis == "parameters":
        return mlp(size), torch.randn(1, 16, 1, 28, 28), torch.randint(0, 10, (1, 16))
    shape, features, classes = ((size, 6), 16, 4) if axis == "clients" else ((1, size), 64, 10)
    inputs, targets = torch.randn(*shape, features), torch.randint(0, classes, shape)
    return SoftmaxRegression(features, classes), inputs, targets


def slopes(found: Sequence[Cost]) -> tuple[float, float]:
    """Returns the slopes of time in log-log: fitted to all sizes, and to the two largest."""
    sizes, times = np.log([cost.size for cost in found]), np.log([cost.ms for cost in found])
    return float(np.polyfit(sizes, times, 1)[0]), float(np.polyfit(sizes[-2:], times[-2:], 1)[0])


def table(axis: Axis, found: Sequence[Cost]) -> Iterator[str]:
    """Yields lines of Markdown."""
    slope, last = slopes(found)
    yield f"\n{axis.name}: {axis.work}. Time has slope {slope:.2f}, last {last:.2f}.\n"
    yield "| " + " | ".join(HEADER) + " |"
    yield "|---" * len(HEADER) + "|"
    first = found[0].ms / found[0].size
    for cost in found:
        each, memory = cost.ms / cost.size, cost.megabytes / cost.size
        values = (cost.ms, 1e3 * each, each / first, cost.megabytes, 1024 * memory)
        yield f"| {cost.size} | " + " | ".join(f"{value:.3g}" for value in values) + " |"


def draw(found: dict[Axis, list[Cost]], path: Path) -> None:
    """Draws a panel for each axis; the dotted line has slope 1 through the largest size."""
    figure = Figure(figsize=(4 * len(found), 3.6), dpi=120, layout="constrained")
    for panel, (axis, of) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        sizes = [cost.size for cost in of]
        panel.loglog(sizes, [cost.ms for cost in of], "o-", color="#0072B2", label="ms a round")
        panel.loglog(sizes, [cost.megabytes for cost in of], "s--", color="#D55E00", label="MB")
        panel.loglog(sizes, [of[-1].ms * size / sizes[-1] for size in sizes], ":", color="#999999", label="slope 1")
        panel.set_title(f"{axis.name}: slope {slopes(of)[0]:.2f}, last {slopes(of)[1]:.2f}", loc="left", fontsize=9)
        panel.set_xlabel(axis.name)
        panel.grid(color="#E6E8EB")
    panel.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
