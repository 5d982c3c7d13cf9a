"""Make lifetime budgets, and show what was spent of them."""

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
    """Make a budget; arguments as of `Budget.create`."""
    Budget.create(file, **terms)


def tell(file: Path, *, as_json: bool) -> None:
    """Print what a budget allows, what is spent by which runs, and what is left.

    Raises:
        LedgerError: it is missing, damaged or altered.
    """
    with busy_with("counting"):
        found = Budget(file).balance()
    if as_json:
        print_json(found.to_json())
        return
    terms = found.terms
    rows = {
        "budget": f"epsilon={terms.epsilon:g} of the data {terms.data!r}, for all runs together",
        "spent": str(found.spent) if found.entries else "nothing",
        "left": f"one more run of up to epsilon={found.left:.3g}" if found.left else "nothing",
        "holds": found.holds,
    }
    print_rows(rows)
    if found.entries:
        table = [["run", "reserved", "epsilon alone", "state"], *map(_line, found.entries)]
        for line in aligned(table):
            out.print(escape(line))


def _line(entry: Entry) -> list[str]:
    if entry.returned:
        given = ", the rest given back"
    else:
        given = ""
    return [entry.run, entry.time, round_up(entry.epsilon), f"{_STATES.get(entry.state, entry.state)}{given}"]
