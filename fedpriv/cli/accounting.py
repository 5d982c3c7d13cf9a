"""Account for the folders of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fedpriv.cli.printing import busy_with, out, print_json, print_rows
from fedpriv.config.of_run import plan_of
from fedpriv.reports.accounts import Account, account_for, unfinished
from fedpriv.reports.spendings import spending_of
from fedpriv.runs.run_files import RunFiles


def tell(
    folders: Sequence[Path],
    *,
    as_json: bool,
    delta: float | None,
    accountant: str | None,
    colluders: int,
    group: int,
) -> None:
    """Print what runs cost.

    Raises:
        FedprivError: a folder holds no run, its files are altered or incomplete, or the runs protect nothing in common.
    """
    files = [RunFiles.read(folder) for folder in folders]
    with busy_with("counting"):
        found = account_for(
            [spending_of(one, plan_of(one)) for one in files],
            [0.0 if one.ledger.header.delta is None else one.ledger.header.delta for one in files],
            delta=delta,
            accountant=accountant,
            colluders=colluders,
            group=group,
        )
    notes = (*found.notes, *(unfinished(one.folder) for one in files if one.result is None))
    if as_json:
        print_json({**found.to_json(), "notes": notes})
    else:
        _print(found, notes)


def _print(found: Account, notes: Sequence[str]) -> None:
    print_rows(found.rows())
    for line in found.table():
        out.print(escape(line))
    for line in found.remarks():
        out.print(f"  {escape(line)}")
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
