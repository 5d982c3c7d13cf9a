"""Splits the time of whole runs: `fedpriv train` of five shipped configurations, in shares of processor time.

    FEDPRIV_DATA=... python benchmarks/speed/whole_runs.py [--only NAME ...] [--markdown FILE]

Each run has a separate process, with a number of rounds that takes about half a minute. Clocks are placed at entry
points: a call inside another entry point counts for that one only. `gradients` includes draws and collation, `start` is
everything before the first round (imports, data, the test of model and loss) except for the noise that is computed for
the whole run, which counts for the accountant, `pictures` includes matplotlib's import; `rest` is the strategy and
everything without an entry point. `--smoke` runs two rounds of one in this process: its numbers are meaningless.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any
from unittest.mock import patch

from rows import SMOKE, Effort
from subprocesses import apart

RUNS = {
    "digits_iadmm": ("rounds=300",),
    "mnist_iadmm": ("rounds=20",),
    "mnist_cnn_fedavg": ("rounds=10",),
    "mnist_cnn_tracking": ("rounds=5",),
    "covertype_svrg": ("rounds=40",),
}
LABELS = ("gradients", "noise", "ledger", "accountant", "evaluation", "checkpoint", "pictures", "start", "rest")


@dataclass
class Clock:
    """Processor seconds by label, with one label at a time."""

    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LABELS, 0.0))
    label: str = "start"
    mark: float = field(default_factory=process_time)

    def now(self, label: str) -> None:
        """Counts time for this label from here on."""
        at = process_time()
        self.spent[self.label] += at - self.mark
        self.label, self.mark = label, at

    @contextmanager
    def inside(self, label: str) -> Iterator[None]:
        """Counts time for this label until the end of the block."""
        before = self.label
        self.now(label)
        try:
            yield
        finally:
            self.now(before)

    def time_calls(self, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the same function with timing."""

        @wraps(call)
        def timed(*arguments: object, **named: object) -> object:
            with self.inside(label):
                return call(*arguments, **named)

        return timed

    def rounds_begin(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the same function; its first call ends the start."""

        @wraps(call)
        def begins(*arguments: object) -> object:
            self.now("rest")
            return call(*arguments)

        return begins


def timed_functions(clock: Clock) -> list[tuple[str, object, str]]:
    """Returns label, owner and name of the timed functions."""
    from fedpriv.oracle.clipped_sums import ClippedSums
    from fedpriv.planning import plan
    from fedpriv.privacy.accounting.accountant import Accountant
    from fedpriv.privacy.accounting.plan_filter import PlanFilter
    from fedpriv.privacy.ledger import Ledger
    from fedpriv.privacy.release import ReleaseScheme
    from fedpriv.privacy.release.local import LocalRelease
    from fedpriv.privacy.release.pairwise import PairwiseRelease
    from fedpriv.privacy.release.sums import SumRelease
    from fedpriv.runs.metric_log import MetricLog
    from fedpriv.runs.training import Training

    with clock.inside("pictures"):
        from fedpriv.reports import picture
    schemes: list[type[ReleaseScheme]] = [LocalRelease, PairwiseRelease, SumRelease]
    return [
        ("gradients", ClippedSums, "gradients"),
        *(("noise", scheme, "add_noise") for scheme in schemes),
        ("ledger", Ledger, "open"),
        ("ledger", Ledger, "sync"),
        ("accountant", PlanFilter, "admit"),
        *(("accountant", Accountant, name) for name in ("quick_epsilon", "spent")),
        ("accountant", plan, "calibrate"),
        ("evaluation", MetricLog, "metrics"),
        ("checkpoint", Training, "save"),
        ("pictures", picture, "draw"),
    ]


def shares(name: str, overrides: list[str], elapsed: bool) -> dict[str, float]:
    """Returns processor seconds of one run by label; `elapsed` adds this process's time so far to its start."""
    clock = Clock(mark=0.0) if elapsed else Clock()
    from fedpriv.cli import app
    from fedpriv.runs.training import Training

    with TemporaryDirectory() as folder, ExitStack() as stack:
        for label, owner, attribute in timed_functions(clock):
            stack.enter_context(patch.object(owner, attribute, clock.time_calls(label, getattr(owner, attribute))))
        stack.enter_context(patch.object(Training, "__iter__", clock.rounds_begin(Training.__iter__)))
        app(["train", name, *overrides, "compute.threads=1", "--out", f"{folder}/run"], standalone_mode=False)
    clock.now("rest")
    return clock.spent


def main() -> None:
    """Runs them all and prints the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="NAME")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
    parser.add_argument("--smoke", action="store_true", help="two rounds of one, in this process")
    options = parser.parse_args()
    effort = SMOKE if options.smoke else Effort()
    lines: list[str] = []
    for line in table(["digits_iadmm"] if options.smoke else options.only, effort):
        print(line, flush=True)
        lines.append(line)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(names: list[str], effort: Effort) -> Iterator[str]:
    """Yields lines of Markdown."""
    yield "| run | " + " | ".join(LABELS) + " | all |"
    yield "|---" * (len(LABELS) + 2) + "|"
    for name in names:
        overrides = ["rounds=2"] if effort.smoke else list(RUNS[name])
        spent = apart(shares, name, overrides, not effort.smoke, effort=effort)
        whole = sum(spent.values())
        parts = " | ".join(f"{spent[label] / whole:.1%}" for label in LABELS)
        yield f"| {' '.join([name, *overrides])} | {parts} | {whole:.1f} s |"


if __name__ == "__main__":
    main()
