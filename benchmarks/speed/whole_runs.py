"""Where the time of whole runs goes: `fedpriv train` of five shipped configurations, in shares of processor time.

    FEDPRIV_DATA=... python benchmarks/speed/whole_runs.py [--only NAME ...] [--markdown FILE]

Each run has a process of its own, with so many rounds that it takes about half a minute. Clocks stand at the
doors: what is called from inside another door counts there alone. `gradients` has draws and collation in it, `start` is
all before the first round (imports, data, the trial of model and loss) but for the noise that is computed for the whole
run, which is the accountant's, `pictures` has matplotlib's import in it; `rest` is the strategy and what has no door.
`--smoke` runs two rounds of one in this process: its numbers mean nothing.
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
    """Processor seconds by label; one label at a time."""

    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LABELS, 0.0))
    label: str = "start"
    mark: float = field(default_factory=process_time)

    def now(self, label: str) -> None:
        """From here on, time counts for this label."""
        at = process_time()
        self.spent[self.label] += at - self.mark
        self.label, self.mark = label, at

    @contextmanager
    def inside(self, label: str) -> Iterator[None]:
        """Time counts for this label until the end."""
        before = self.label
        self.now(label)
        try:
            yield
        finally:
            self.now(before)

    def at_door(self, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @wraps(call)
        def timed(*arguments: object, **named: object) -> object:
            with self.inside(label):
                return call(*arguments, **named)

        return timed

    def rounds_begin(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; when it is called the start is over."""

        @wraps(call)
        def begins(*arguments: object) -> object:
            self.now("rest")
            return call(*arguments)

        return begins


def doors(clock: Clock) -> list[tuple[str, object, str]]:
    """Label, owner and name of what is timed."""
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
    """Processor seconds of one run by label; those of this process so far count as its start if asked."""
    clock = Clock(mark=0.0) if elapsed else Clock()
    from fedpriv.cli import app
    from fedpriv.runs.training import Training

    with TemporaryDirectory() as folder, ExitStack() as stack:
        for label, owner, attribute in doors(clock):
            stack.enter_context(patch.object(owner, attribute, clock.at_door(label, getattr(owner, attribute))))
        stack.enter_context(patch.object(Training, "__iter__", clock.rounds_begin(Training.__iter__)))
        app(["train", name, *overrides, "compute.threads=1", "--out", f"{folder}/run"], standalone_mode=False)
    clock.now("rest")
    return clock.spent


def main() -> None:
    """Run them all and print the shares."""
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
    """Lines of Markdown."""
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
