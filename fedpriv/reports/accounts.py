"""The privacy cost of finished and unfinished runs, computed from their ledgers: in total, and for each adversary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.planning import align_columns
from fedpriv.privacy import Cell, RunCost, basic_composition, compose, compute_bound_matrix
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.reports import wording
from fedpriv.reports.spending import PlannedSpending, compute_run_charge
from fedpriv.runs import RunFiles
from fedpriv.storage import strict_json

Cost = PrivacySpent | tuple[float, float]
"""A guarantee with its conditions, or an epsilon and a delta."""


@dataclass(frozen=True)
class Account:
    """The privacy cost of one or several runs.

    Attributes:
        costs: The charge of each run.
        spent: The total cost of all runs, against an adversary with the view that each run's trust allows.
        runs: The name of each run and its own cost at the same delta.
        basic: Sum of epsilons and of deltas, which also holds if later runs depend on the results of earlier ones.
        cells: The bounds for every adversary and privacy unit.
        notes: Sentences about the assumptions of the cost.
    """

    costs: tuple[RunCost, ...]
    spent: PrivacySpent
    runs: tuple[tuple[str, PrivacySpent], ...]
    basic: tuple[float, float]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the output of `fedpriv account --json`."""
        spent = self.spent
        epsilon = strict_json.encode_epsilon
        facts = ("delta", "unit", "relation", "trust", "accountant", "non_private", "not_covered", "float64_noise")
        return strict_json.to_plain(
            {
                "epsilon": epsilon(spent.epsilon),
                **{name: getattr(spent, name) for name in facts},
                "per_client_epsilon": [epsilon(value) for value in spent.per_client],
                "basic": {"epsilon": epsilon(self.basic[0]), "delta": self.basic[1]},
                "runs": [{"run": name, "epsilon": epsilon(alone.epsilon)} for name, alone in self.runs],
                "matrix": [{**asdict(cell), "epsilon": epsilon(cell.epsilon)} for cell in self.cells],
                "notes": self.notes,
            }
        )

    @property
    def named_costs(self) -> Sequence[tuple[str, Cost]]:
        """The cost of each run, the total cost, and the sum; for one run only its cost."""
        if len(self.runs) == 1:
            return self.runs
        return [*self.runs, ("together", self.spent), ("if results chose later runs", self.basic)]

    def table(self) -> tuple[list[str], list[str]]:
        """Returns a line for each adversary with a column for each unit, and the meanings of its letters."""
        units = dict.fromkeys(cell.unit for cell in self.cells)
        lines, remarks = add_remark_letters(self.cells, _bound_in_words, _remark_on)
        return align_columns([["adversary", *units], *([name, *bounds] for name, bounds in lines.items())]), remarks


def compute_account(
    runs: Sequence[RunFiles],
    plans: Sequence[PlannedSpending],
    *,
    delta: float | None = None,
    accountant: str | None = None,
    colluders: int = 1,
    group: int = 10,
) -> Account:
    """Computes the cost of runs, in total and for each adversary.

    Args:
        runs: The files of each run.
        plans: The facts known about each run besides its files.
        delta: The delta of all together; the smallest of the runs' own by default.
        accountant: See `composition.compose`.
        colluders: Number of clients that collude.
        group: Number of units in a group.

    Raises:
        ConfigError: If an argument is out of range.
        LedgerError: If the files of a run are altered or incomplete.
        PrivacyError: If the runs share no privacy unit, or share noise, or the plan of an unfinished one is unknown.
    """
    costs = [compute_run_charge(run, plan) for run, plan in zip(runs, plans, strict=True)]
    if delta is None:
        delta = min(run.ledger.header.delta or 0.0 for run in runs)
    together = compose(costs, delta, accountant)
    spent_by_run = [together]
    if len(costs) > 1:
        spent_by_run = [compose([cost], delta, accountant) for cost in costs]
    return Account(
        costs=tuple(costs),
        spent=together,
        runs=tuple((cost.name, spent) for cost, spent in zip(costs, spent_by_run, strict=True)),
        basic=basic_composition(spent_by_run),
        cells=compute_bound_matrix(costs, delta, accountant, colluders=colluders, group=group),
        notes=tuple(_notes(costs)),
    )


def format_cost_rows(costs: Sequence[tuple[str, Cost]]) -> list[tuple[str, str]]:
    """Returns names and costs as text; pairs without a finite epsilon are left out."""
    rows = list[tuple[str, str]]()
    for name, cost in costs:
        if isinstance(cost, PrivacySpent):
            rows.append((name, str(cost)))
        elif math.isfinite(cost[0]):
            rows.append((name, f"epsilon={round_up(cost[0])} at delta={wording.format_small(cost[1])}"))
    return rows


def add_remark_letters(
    cells: Sequence[Cell], value: Callable[[Cell], str], remark: Callable[[Cell], str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the bounds against each adversary, each with the letter of its remark, and the remarks.

    Args:
        cells: The bounds.
        value: Returns a bound as text.
        remark: Returns the assumptions of a bound.
    """
    lines = dict[str, list[str]]()
    letters = dict[str, str]()
    for cell in cells:
        letter = letters.setdefault(remark(cell), _letter(len(letters)))
        lines.setdefault(cell.adversary, []).append(f"{value(cell)} [{letter}]")
    return lines, [f"[{letter}] {text}" for text, letter in letters.items()]


def _notes(runs: Sequence[RunCost]) -> list[str]:
    """Returns sentences about the assumptions of the runs' total cost."""
    notes = list[str]()
    if len({(run.data, run.n_clients) for run in runs}) > 1:
        notes.append(
            "the runs' data differ, according to their configurations: accounted as if one unit were in all of "
            "them, at the client with the largest privacy cost in each; a unit that is in only one run has the "
            "cost of that run"
        )
    elif len(runs) > 1 and runs[0].data is None:
        notes.append(
            "it is not recorded that each client had the same rows in all runs: accounted as if one unit were "
            "in all of them, at the client with the largest privacy cost in each"
        )
    if len({kind[:2] for run in runs for kind in run.kinds}) > 1:
        notes.append(
            "the runs have different privacy units or neighbouring relations: accounted for the protection "
            "that all of them give. Replacing a unit is removing one and adding another, and a client's "
            "protection covers each of its examples"
        )
    if len(runs) > 1:
        notes.append(
            "together: holds if the number of runs and their noise do not depend on results of earlier runs; "
            "if they do, as in a search for the best setting, the sum holds"
        )
    return notes


def describe_unfinished(folder: Path) -> str:
    """Returns a note on a run that is not finished."""
    return f"{folder} is not finished: its whole plan is charged, as if it were abandoned"


def _bound_in_words(cell: Cell) -> str:
    if math.isinf(cell.epsilon):
        return "no bound"
    return f"{round_up(cell.epsilon)} ({cell.accountant})"


def _remark_on(cell: Cell) -> str:
    text = f"Assumes: {cell.assumes}. Amplification: {cell.amplification}. Neighbours: {cell.relation}"
    if cell.bound_of:
        text = f"the bound for {cell.bound_of}; no smaller one is known. {text}"
    if cell.simulated:
        return f"{text}. Simulated: the protocol that this assumes"
    return text


def _letter(number: int) -> str:
    if number < 26:
        return chr(ord("a") + number)
    return f"{number}"
