"""The progress bar of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedpriv.evaluation import metrics
from fedpriv.settings.checks import validate_arguments

if TYPE_CHECKING:
    from fedpriv.runs.results import RoundReport

_PLAIN_LINES = 20
_LEAST_SECONDS = 0.5  # for a speed: reports arrive in groups of up to a tenth of a second


def can_update(console: Console) -> bool:
    """True if a progress bar can be updated on this console: on a terminal or in a notebook."""
    return console.is_terminal or console.is_jupyter


@validate_arguments("sinks")
class ProgressDisplay:
    """Shows a progress bar on a terminal or in a notebook, and prints about twenty plain lines elsewhere.

    Args:
        rounds: Number of rounds of the run.
        done: Rounds done before a resume.
        console: Output console; standard error by default.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        rounds: int,
        done: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._console = console or Console(stderr=True)
        self._every = -(-rounds // _PLAIN_LINES)
        self._last: dict[str, float] = {}
        self._start: tuple[int, float] | None = None
        self._progress = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=12),
            TimeRemainingColumn(compact=True),
            # on a narrow terminal only the end of this text is cut
            TextColumn("left · {task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=rounds, completed=done)
        self._moves = can_update(self._console)
        if self._moves:
            self._progress.start()

    def write(self, report: RoundReport) -> None:
        """Shows one round; does nothing once the terminal is closed."""
        with suppress(OSError):
            self._show(report)

    def _show(self, report: RoundReport) -> None:
        if report.warning:
            self._console.print(f"[bold yellow]warning:[/] {escape(report.warning)}", highlight=False, soft_wrap=True)
        self._last |= report.metrics
        texts = *self._metrics(), _epsilon(report), self._speed(report)
        if self._moves:
            # epsilon and accuracy first, since the end may be cut
            ordered = sorted(filter(None, texts), key=lambda text: not text.startswith(("epsilon", "accuracy")))
            self._progress.update(self._task, completed=report.round, description=" · ".join(ordered))
        elif report.round % self._every == 0 or report.round == report.rounds:
            text = " · ".join(filter(None, texts))
            self._console.print(f"round {report.round}/{report.rounds} · {text}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Clears the line."""
        with suppress(OSError):
            if self._moves:
                self._progress.stop()

    def _metrics(self) -> list[str]:
        texts = [f"{word} {row.text(self._last[name])}" for name, word, row in _live_metrics() if name in self._last]
        hidden = {name for name, _, _ in _live_metrics()} | set(metrics.list_report_names())
        return texts + [f"{name} {value:.3g}" for name, value in self._last.items() if name not in hidden]

    def _speed(self, report: RoundReport) -> str:
        time_now = self._clock()
        if self._start is None:
            self._start = (report.round, time_now)
        first_round, first_time = self._start
        rounds = report.round - first_round
        seconds = time_now - first_time
        if rounds and seconds >= _LEAST_SECONDS:
            return f"{rounds / seconds:.3g} rounds/s"
        return ""


def _live_metrics() -> Iterator[tuple[str, str, metrics.Metric[object]]]:
    """Yields the name, the displayed name and the table row of each metric on the progress line. Other metrics are only
    in files and TensorBoard.
    """
    for row in (*metrics.TESTED, *metrics.OF_NODES, *metrics.OF_RUN, *metrics.REPORTED):
        if row.live:
            yield row.name, row.live, row
        if row.live and row.better == "higher":
            yield f"node_{row.name}_min", "of the worst node", row
            yield f"client_{row.name}_min", "of the worst client", row


def _epsilon(report: RoundReport) -> str:
    if report.epsilon == float("inf"):
        return "not private"
    if report.target is None:
        target = ""
    else:
        target = f" of {report.target:g}"
    return f"epsilon spent <= {report.epsilon:.3g}{target}"
