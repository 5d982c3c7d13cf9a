"""Prints on the terminal: rows, tables, errors, JSON, runs and plans."""

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
    from fedpriv.forecast.forecasting import Forecast
    from fedpriv.reports.report import Run

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def spinner(rounds: int) -> Status:
    """Returns a spinner for the time in which data are read and rounds are planned; shown on a terminal only."""
    return spinner_with_text(f"reading data, planning {rounds} round{'s' * (rounds > 1)}")


def spinner_with_text(activity: str) -> Status:
    """Returns a spinner with a text; shown on a terminal only."""
    return err.status(activity)


def print_rows(rows: dict[str, str], indent: int = 0) -> None:
    """Prints one line for each row, never wrapped, so that an epsilon and its conditions stay on one line."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        out.print(f"{' ' * indent}[bold]{name:<{width}}[/]  {escape(value)}")


def print_tables(tables: dict[str, dict[str, str]]) -> None:
    """Prints rows under headings."""
    for heading, rows in tables.items():
        out.print(f"[bold]{escape(heading)}[/]")
        print_rows(rows, indent=2)


def print_error(text: str) -> None:
    """Prints an error as one line on standard error."""
    err.print(f"[bold red]error:[/] {escape(' '.join(text.split()))}")


def print_warning(text: str) -> None:
    """Prints a warning as one line."""
    out.print(f"[bold yellow]warning:[/] {escape(text)}")


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object on standard output."""
    typer.echo(strict_json.dumps(value, indent=2))


def print_run(run: Run, picture: Path, *, as_json: bool) -> None:
    """Prints one run, and draws it to the file `picture`."""
    from fedpriv.reports.picture import draw

    picture_row = {"picture": str(picture)}
    try:
        draw(run, picture)
    except OSError as error:  # the folder may be read-only
        err.print(f"[yellow]note:[/] no picture: {picture} could not be written ({error.strerror})")
        picture_row = {}
    if as_json:
        print_json({**run.to_json(), **picture_row})
    else:
        print_rows({**run.rows(), **picture_row})


def print_comparison(runs: Sequence[Run], *, as_json: bool) -> None:
    """Prints several runs, one line each, with notes on comparing them."""
    from fedpriv.config.recovered_plan import recover_plan
    from fedpriv.reports import comparison
    from fedpriv.reports.spending import PlannedSpending, may_stay_unfinished

    plans = [recover_plan(run.files) if may_stay_unfinished(run.files) else PlannedSpending() for run in runs]
    notes = comparison.collect_notes(runs, plans)
    if as_json:
        print_json({"runs": [run.to_json() for run in runs], "notes": notes})
        return
    for line in comparison.format_table(runs):
        out.print(escape(line))
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


def print_forecast(forecast: Forecast) -> None:
    """Prints a plan: its rows, and a line for each alternative noise."""
    print_rows(forecast.rows())
    for heading, *lines in forecast.tables():
        out.print(f"[bold]{escape(heading)}[/]")
        for line in lines:
            out.print(escape(line))
    for warning in forecast.warnings:
        print_warning(warning)
