"""Prints what runs cost, from the ledgers in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fedpriv.cli.printing import busy_with, out, print_json, print_rows
from fedpriv.config.of_run import plan_of
from fedpriv.reports.accounts import Account, account_for, unfinished
from fedpriv.reports.spendings import is_unfinished, spending_of
from fedpriv.runs.run_files import RunFiles


def print_costs(
    folders: Sequence[Path],
    *,
    as_json: bool,
    delta: float | None,
    accountant: str | None,
    colluders: int,
    group: int,
) -> None:
    """Prints what runs cost together.

    Raises:
        FedprivError: a folder holds no run, its files are altered or incomplete, or the runs protect nothing in common.
    """
    runs = [RunFiles.read(folder) for folder in folders]
    with busy_with("counting"):
        plans = [plan_of(run) for run in runs]
        costs = [spending_of(run, plan) for run, plan in zip(runs, plans, strict=True)]
        account = account_for(
            costs,
            [0.0 if run.ledger.header.delta is None else run.ledger.header.delta for run in runs],
            delta=delta,
            accountant=accountant,
            colluders=colluders,
            group=group,
        )
    notes = list(account.notes)
    for run, plan in zip(runs, plans, strict=True):
        if is_unfinished(run, plan):
            notes.append(unfinished(run.folder))
    if as_json:
        print_json({**account.to_json(), "notes": notes})
    else:
        _print(account, notes)


def _print(account: Account, notes: Sequence[str]) -> None:
    print_rows(account.rows())
    for line in account.table():
        out.print(escape(line))
    for line in account.remarks():
        out.print(f"  {escape(line)}")
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
