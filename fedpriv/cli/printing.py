"""What the commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from fedpriv.storage import strict_json

if TYPE_CHECKING:
    from fedpriv.planning.forecasting import Forecast
    from fedpriv.reports.report import Run

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def busy(rounds: int) -> Status:
    """A spinner while data are read and rounds are planned; shown on a terminal only."""
    return busy_with(f"reading data, planning {rounds} round{'s' * (rounds > 1)}")


def busy_with(what: str) -> Status:
    """A spinner; shown on a terminal only."""
    return err.status(what)


def print_rows(rows: dict[str, str], indent: int = 0) -> None:
    """Print one line for each row, never wrapped, so that an epsilon and its conditions stay on one line."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        out.print(f"{' ' * indent}[bold]{name:<{width}}[/]  {escape(value)}")


def print_tables(tables: dict[str, dict[str, str]]) -> None:
    """Rows under headings."""
    for heading, rows in tables.items():
        out.print(f"[bold]{escape(heading)}[/]")
        print_rows(rows, indent=2)


def print_error(text: str) -> None:
    """Print an error as one line on standard error."""
    err.print(f"[bold red]error:[/] {escape(' '.join(text.split()))}")


def print_warning(text: str) -> None:
    """Print a warning as one line."""
    out.print(f"[bold yellow]warning:[/] {escape(text)}")


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    typer.echo(strict_json.dumps(value, indent=2))


def print_run(found: Run, picture: Path, *, as_json: bool) -> None:
    """Print one run, and draw it to this file."""
    from fedpriv.reports.picture import draw

    drawn = {"picture": str(picture)}
    try:
        draw(found, picture)
    except OSError as error:  # a folder that may be read only
        err.print(f"[yellow]note:[/] no picture: {picture} could not be written ({error.strerror})")
        drawn = dict[str, str]()
    if as_json:
        print_json({**found.to_json(), **drawn})
    else:
        print_rows({**found.rows(), **drawn})


def print_comparison(runs: Sequence[Run], *, as_json: bool) -> None:
    """Print several runs, one line each, with notes on comparing them."""
    from fedpriv.config.of_run import plan_of
    from fedpriv.reports import comparison
    from fedpriv.reports.spendings import PlannedSpending, ended_early

    plans = [plan_of(run.files) if ended_early(run.files) else PlannedSpending() for run in runs]
    notes = comparison.notes(runs, plans)
    if as_json:
        print_json({"runs": [run.to_json() for run in runs], "notes": notes})
        return
    for line in comparison.table(runs):
        out.print(escape(line))
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


def print_forecast(found: Forecast) -> None:
    """Print a plan: its rows, and a line for each other noise that it could have."""
    print_rows(found.rows())
    for heading, *lines in found.tables():
        out.print(f"[bold]{escape(heading)}[/]")
        for line in lines:
            out.print(escape(line))
    for warning in found.warnings:
        print_warning(warning)
