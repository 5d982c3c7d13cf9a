"""Prints the privacy cost of runs, from the ledgers in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fedpriv.cli.printing import out, print_json, print_rows, spinner_with_text
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.reports.accounts import compute_account, describe_unfinished, format_cost_rows
from fedpriv.reports.spending import is_unfinished
from fedpriv.runs import RunFiles


def print_costs(
    folders: Sequence[Path],
    *,
    as_json: bool,
    delta: float | None,
    accountant: str | None,
    colluders: int,
    group: int,
) -> None:
    """Prints the total privacy cost of runs.

    Raises:
        FedprivError: If a folder holds no run, its files are altered or incomplete, or the runs have no common
            privacy unit.
    """
    runs = [RunFiles.read(folder) for folder in folders]
    with spinner_with_text("counting"):
        plans = [recover_plan(run) for run in runs]
        account = compute_account(runs, plans, delta=delta, accountant=accountant, colluders=colluders, group=group)
    notes = list(account.notes)
    for run, plan in zip(runs, plans, strict=True):
        if is_unfinished(run, plan):
            notes.append(describe_unfinished(run.folder))
    if as_json:
        print_json({**account.to_json(), "notes": notes})
        return
    lines, remarks = account.table()
    print_rows(dict(format_cost_rows(account.named_costs)))
    for line in [*lines, *(f"  {remark}" for remark in remarks)]:
        out.print(escape(line))
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
