"""Reports of rounds that nobody ran, and what a terminal shows of them."""

from __future__ import annotations

import io
import itertools

from rich.console import Console

from fedpriv.reports.sinks import ProgressDisplay
from fedpriv.runs.results import RoundReport


def report(number: int, *, measured: bool = True, epsilon: float | None = None, rounds: int = 40) -> RoundReport:
    metrics = {"test_loss": 1 / number, "test_accuracy": number / rounds} if measured else {}
    return RoundReport(number, rounds, metrics, number / 10 if epsilon is None else epsilon, 4.0, 2 * number)


def terminal_output(*, terminal: bool, rounds: int = 40, epsilon: float | None = None, width: int = 140) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=width, color_system=None)
    ticks = itertools.count(0.5, 0.5)
    live = ProgressDisplay(rounds, console=console, clock=lambda: next(ticks))
    for number in range(1, rounds + 1):
        live.write(report(number, measured=number % 4 == 0, epsilon=epsilon, rounds=rounds))
    live.close()
    return text.getvalue()
