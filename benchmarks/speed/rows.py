"""A line of the table, and the timing of contenders: alternating, in one run, by the processor time of one thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time

OURS, PLAIN = "fedpriv", "plain"
SMALLER = 400  # divisor of sizes in a smoke run


@dataclass(frozen=True)
class Effort:
    """The effort of a run.

    Attributes:
        seconds: Processor time of the contenders of a line.
        divide: Divisor of sizes: 1 except in smoke runs.
        pfl: The interpreter with pfl-research; None if there is none.
        look: Called with each measured contender, by name.
    """

    seconds: float = 5.0
    divide: int = 1
    pfl: Path | None = None
    look: Callable[[str, Callable[[], object]], None] = field(default=lambda name, run: None, repr=False)

    @property
    def smoke(self) -> bool:
        """True if this run only checks that everything still runs; all of it then stays in this process."""
        return self.divide > 1

    def of(self, size: int, least: int = 2) -> int:
        """Returns a size, or the reduced size of a smoke run."""
        return max(least, size // self.divide) if self.smoke else size


SMOKE = Effort(0.0, SMALLER)


@dataclass(frozen=True)
class Found:
    """The costs of a line's contenders, in the line's unit.

    Attributes:
        costs: By contender: `fedpriv`, `plain` (the divisor of the line) and peers.
        note: Details of fedpriv's computation, e.g. the backend that it selected.
    """

    costs: Mapping[str, float]
    note: str = ""

    def ratios(self) -> dict[str, float]:
        """Returns the ratios of fedpriv and of each peer, over `plain`."""
        return {name: cost / self.costs[PLAIN] for name, cost in self.costs.items() if name != PLAIN}


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        work: The work of fedpriv.
        over: The divisor of its cost.
        aim: Target of the ratio.
        measure: Measures the line's contenders.
        unit: Unit of the costs: `ms` or `MB`.
    """

    work: str
    over: str
    aim: str
    measure: Callable[[Effort], Found] = field(repr=False)
    unit: str = "ms"


def interleaved(contenders: Mapping[str, Callable[[], object]], effort: Effort) -> dict[str, float]:
    """Returns each contender's median processor milliseconds; they alternate, and the first turn is warm-up."""
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
    """Returns processor milliseconds of each contender, for work that caches its earlier results."""
    times: dict[str, float] = {}
    for name, run in contenders.items():
        gc.collect()
        start = process_time()
        run()
        times[name] = 1e3 * (process_time() - start)
    return times
