"""Shows running runs: the contents of their folders in one table, which is updated repeatedly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from fedpriv.cli.printing import out
from fedpriv.evaluation import metrics
from fedpriv.planning import align_columns
from fedpriv.privacy.accounting import round_up
from fedpriv.runs import find_settings_path, make_missing_run_error, read_metrics, read_settings

_QUIET = 60.0  # seconds without a round after which a run is called quiet


@dataclass
class WatchedRun:
    """A run's folder, and the times at which its rounds were observed.

    Attributes:
        folder: The folder.
        first: Number of rounds at the first check, and its time; None before the first check.
        latest: Number of rounds at the last check, and the time at which it last grew.
    """

    folder: Path
    first: tuple[int, float] | None = None
    latest: tuple[int, float] = (0, 0.0)

    def look(self, now: float) -> dict[str, str]:
        """Returns the present state of the run, by heading.

        Args:
            now: Time in seconds of a monotonic clock.
        """
        rows = read_metrics(self.folder / "metrics.jsonl")
        settings = read_settings(self.folder) or {}
        if rows:
            last = rows[-1]
        else:
            last = dict[str, Any]()
        done = int(last.get("round", 0))
        if self.first is None:
            self.first = (done, now)
            self.latest = (done, now)
        if done != self.latest[0]:
            self.latest = (done, now)
        tested = next((row for row in reversed(rows) if _headline(row)), dict[str, Any]())
        target = settings.get("privacy", {}).get("epsilon")
        epsilon = "-"
        if "epsilon" in last:
            epsilon = round_up(float(last["epsilon"]))
        if target is not None:
            epsilon += f" of {target:g}"
        return {
            "run": str(self.folder),
            "round": f"{done} of {settings.get('rounds', '?')}",
            "tested": _headline(tested) or "-",
            "epsilon spent, at most": epsilon,
            "state": self._state(done, int(settings.get("rounds", 0)), now),
        }

    @property
    def is_finished(self) -> bool:
        """True if the run wrote its result."""
        return (self.folder / "result.json").exists()

    def _state(self, done: int, rounds: int, now: float) -> str:
        if self.is_finished:
            return "finished"
        assert self.first is not None
        quiet = now - self.latest[1]
        if quiet > _QUIET:
            return f"no round for {_duration(quiet)}: slow, stopped or not responding"
        if done > self.first[0] and rounds > done:
            left = (rounds - done) * (now - self.first[1]) / (done - self.first[0])
            return f"running, about {_duration(left)} left"
        return "not finished"


def watch(folders: Sequence[Path], every: float) -> None:
    """Shows a table of runs until all are finished; prints it once if the output is not a terminal.

    Args:
        folders: Folders of runs.
        every: Seconds between two updates.

    Raises:
        FedprivError: If a folder holds no run.
    """
    for folder in folders:
        if not find_settings_path(folder).exists():
            raise make_missing_run_error(folder, "config.yaml", "name the folder given as --out")
    runs = [WatchedRun(folder) for folder in folders]
    if not out.is_terminal:
        lines = [run.look(time.monotonic()) for run in runs]
        for line in align_columns([[*lines[0]], *([*line.values()] for line in lines)]):
            out.print(escape(line))
        return
    with Live(_table(runs), console=out, auto_refresh=False) as live:
        while not all(run.is_finished for run in runs):
            time.sleep(every)
            live.update(_table(runs), refresh=True)


def _table(runs: Sequence[WatchedRun]) -> Table:
    now = time.monotonic()
    lines = [run.look(now) for run in runs]
    table = Table(box=None, pad_edge=False)
    for heading in lines[0]:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line.values()))
    return table


def _headline(row: dict[str, Any]) -> str:
    """Returns the first test metric of a round as text; empty if the round was not tested."""
    for metric in metrics.list_headline_metrics():
        if row.get(metric.name) is not None:
            return f"{metric.title} {metric.text(row[metric.name])} in round {row['round']}"
    return ""


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
