"""Makes lifetime budgets, and prints what was spent of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from fedpriv.cli.printing import busy_with, out, print_json, print_rows
from fedpriv.planning.notebook_display import aligned
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.budget import AT_WORK, Budget, Entry

_STATES = {
    AT_WORK: AT_WORK,
    "rounds": "finished",
    "budget": "ended by its own limit",
    "strategy": "stopped early, charged whole",
    "metric": "stopped early, charged whole",
    "nonfinite": "broke, charged whole",
}


def create(file: Path, **terms: Any) -> None:  # noqa: ANN401 - the terms of `Budget.create`
    """Makes a budget; arguments as of `Budget.create`."""
    Budget.create(file, **terms)


def print_balance(file: Path, *, as_json: bool) -> None:
    """Prints what a budget allows, what each run has spent of it, and what is left.

    Raises:
        LedgerError: the budget is missing, damaged or altered.
    """
    with busy_with("counting"):
        balance = Budget(file).balance()
    if as_json:
        print_json(balance.to_json())
        return
    terms = balance.terms
    rows = {
        "budget": f"epsilon={terms.epsilon:g} of the data {terms.data!r}, for all runs together",
        "spent": str(balance.spent) if balance.entries else "nothing",
        "left": f"one more run of up to epsilon={balance.left:.3g}" if balance.left else "nothing",
        "holds": balance.holds,
    }
    print_rows(rows)
    if balance.entries:
        table = [["run", "reserved", "epsilon alone", "state"], *map(_line, balance.entries)]
        for line in aligned(table):
            out.print(escape(line))


def _line(entry: Entry) -> list[str]:
    """Returns the line of a run in the table."""
    state = _STATES.get(entry.state, entry.state)
    if entry.returned:
        state += ", the rest given back"
    return [entry.run, entry.time, round_up(entry.epsilon), state]
