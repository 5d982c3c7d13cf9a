"""A line of the table, and how contenders are timed: in turns, in one run, by the processor time of one thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time

OURS, PLAIN = "fedpriv", "plain"
SMALLER = 400  # by which a smoke run divides sizes


@dataclass(frozen=True)
class Effort:
    """How much a run takes upon itself.

    Attributes:
        seconds: Processor time for which the contenders of a line take turns.
        divide: Number by which sizes are divided: 1, but for smoke runs.
        pfl: The interpreter that has pfl-research; None where there is none.
        look: Shown each contender that was timed, by name.
    """

    seconds: float = 5.0
    divide: int = 1
    pfl: Path | None = None
    look: Callable[[str, Callable[[], object]], None] = field(default=lambda name, run: None, repr=False)

    @property
    def smoke(self) -> bool:
        """Whether this run only shows that everything still runs: then all of it stays in this process."""
        return self.divide > 1

    def of(self, size: int, least: int = 2) -> int:
        """A size, or what a smoke run has of it."""
        return max(least, size // self.divide) if self.smoke else size


SMOKE = Effort(0.0, SMALLER)


@dataclass(frozen=True)
class Found:
    """What a line's contenders cost, in the line's unit.

    Attributes:
        costs: By contender: `fedpriv`, `plain` (whatever the line divides by) and peers.
        note: How fedpriv did it, e.g. the backend that it chose.
    """

    costs: Mapping[str, float]
    note: str = ""

    def ratios(self) -> dict[str, float]:
        """Of fedpriv and of each peer, over `plain`."""
        return {name: cost / self.costs[PLAIN] for name, cost in self.costs.items() if name != PLAIN}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        work: What fedpriv does.
        over: What its cost is divided by.
        aim: What we want the ratio to be.
        measure: Measures the line's contenders.
        unit: Of the costs: `ms` or `MB`.
    """

    work: str
    over: str
    aim: str
    measure: Callable[[Effort], Found] = field(repr=False)
    unit: str = "ms"


def interleaved(contenders: Mapping[str, Callable[[], object]], effort: Effort) -> dict[str, float]:
    """Median processor time of each contender, in milliseconds: they take turns, and the first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end, turns, fewest = process_time() + effort.seconds, 0, 1 if effort.smoke else 4
    while turns < fewest or process_time() < end:
        for name, run in contenders.items():
            start = process_time()
            run()
            times[name].append(1e3 * (process_time() - start))
        turns += 1
    for name, run in contenders.items():
        effort.look(name, run)
    return {name: median(of[1:] or of) for name, of in times.items()}


def once(contenders: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Processor time of each contender, in milliseconds, for work that remembers what it has done before."""
    times: dict[str, float] = {}
    for name, run in contenders.items():
        gc.collect()
        start = process_time()
        run()
        times[name] = 1e3 * (process_time() - start)
    return times
