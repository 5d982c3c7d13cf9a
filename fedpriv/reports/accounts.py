"""What finished and unfinished runs cost, counted from their ledgers: together, and against each adversary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.planning.notebook_display import aligned
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.composition import RunCost, basic, compose
from fedpriv.privacy.matrix import Cell, matrix
from fedpriv.storage import strict_json


@dataclass(frozen=True)
class Account:
    """The price of one or several runs.

    Attributes:
        spent: The price of all runs together, against whoever sees what the trust of each run allows.
        runs: Each run's name and its own price at the same delta.
        basic: Sum of epsilons and of deltas, which holds also where later runs depend on the answers of earlier ones.
        cells: The bounds for every adversary and unit.
        notes: Sentences about what the price assumes.
    """

    spent: PrivacySpent
    runs: tuple[tuple[str, PrivacySpent], ...]
    basic: tuple[float, float]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns what `fedpriv account --json` prints."""
        spent = self.spent
        epsilon = strict_json.epsilon
        facts = ("delta", "unit", "relation", "trust", "accountant", "non_private", "not_covered", "float64_noise")
        return strict_json.plain(
            {
                "epsilon": epsilon(spent.epsilon),
                **{name: getattr(spent, name) for name in facts},
                "per_client_epsilon": [epsilon(value) for value in spent.per_client],
                "basic": {"epsilon": epsilon(self.basic[0]), "delta": self.basic[1]},
                "runs": [{"run": name, "epsilon": epsilon(price.epsilon)} for name, price in self.runs],
                "matrix": [{**asdict(cell), "epsilon": epsilon(cell.epsilon)} for cell in self.cells],
                "notes": self.notes,
            }
        )

    def rows(self) -> dict[str, str]:
        """Returns the prices as names and values."""
        rows = {name: str(price) for name, price in self.runs}
        if len(self.runs) > 1:
            rows["together"] = str(self.spent)
            epsilon, delta = self.basic
            if math.isfinite(epsilon):
                rows["if answers chose later runs"] = f"epsilon={round_up(epsilon)} at delta={delta:.6g}"
        return rows

    def table(self) -> list[str]:
        """Formats a line for each adversary, a column for each unit; letters refer to `remarks`."""
        units = list(dict.fromkeys(cell.unit for cell in self.cells))
        lines = dict[str, list[str]]()
        remarks = self._remarks()
        for cell in self.cells:
            lines.setdefault(cell.adversary, []).append(f"{_bound_in_words(cell)} [{remarks[_remark_on(cell)]}]")
        return aligned([["adversary", *units], *([name, *cells] for name, cells in lines.items())])

    def remarks(self) -> list[str]:
        """Returns what the letters of the table mean."""
        return [f"[{letter}] {text}" for text, letter in self._remarks().items()]

    def _remarks(self) -> dict[str, str]:
        texts = list(dict.fromkeys(_remark_on(cell) for cell in self.cells))
        return {text: _letter(number) for number, text in enumerate(texts)}


def account_for(
    runs: Sequence[RunCost],
    deltas: Sequence[float],
    *,
    delta: float | None = None,
    accountant: str | None = None,
    colluders: int = 1,
    group: int = 10,
) -> Account:
    """Computes the price of runs, together and against each adversary.

    Args:
        runs: What each run is charged.
        deltas: The delta of each run.
        delta: The delta of all together; the smallest of the runs' own by default.
        accountant: See `composition.compose`.
        colluders: Number of clients that collude.
        group: Number of units in a group.

    Raises:
        ConfigError: an argument is out of range.
        PrivacyError: the runs protect nothing in common, or share noise.
    """
    common_delta = min(deltas) if delta is None else delta
    together = compose(runs, common_delta, accountant)
    prices = [together]
    if len(runs) > 1:
        prices = [compose([run], common_delta, accountant) for run in runs]
    return Account(
        spent=together,
        runs=tuple((run.name, price) for run, price in zip(runs, prices, strict=True)),
        basic=basic(prices),
        cells=matrix(runs, common_delta, accountant, colluders=colluders, group=group),
        notes=tuple(_notes(runs)),
    )


def _notes(runs: Sequence[RunCost]) -> list[str]:
    """Returns sentences about what the price of the runs together assumes."""
    notes = list[str]()
    if len({(run.data, run.n_clients) for run in runs}) > 1:
        notes.append(
            "the runs' data differ, by their configurations: counted as if one unit were in all of them, at the client "
            "that pays most in each; a unit that is in one of them pays for that one alone"
        )
    elif len(runs) > 1 and runs[0].data is None:
        notes.append(
            "it is not on record that each client had the same rows in all runs: counted as if one unit were in all of "
            "them, at the client that pays most in each"
        )
    if len({kind[:2] for run in runs for kind in run.kinds}) > 1:
        notes.append(
            "the runs protect different units or relations: counted for what all of them protect. To replace a unit is "
            "to remove one and add another, and a client's protection covers each of its examples"
        )
    if len(runs) > 1:
        notes.append(
            "together: if the number of runs and their noise do not depend on the answers of earlier ones; if they do, "
            "as when the best of many settings is looked for, the sum holds"
        )
    return notes


def unfinished(folder: Path) -> str:
    """Returns a note on a run that is not finished."""
    return f"{folder} is not finished: its whole plan is charged, as if it were left here"


def _bound_in_words(cell: Cell) -> str:
    if math.isinf(cell.epsilon):
        return "no bound"
    return f"{round_up(cell.epsilon)} ({cell.accountant})"


def _remark_on(cell: Cell) -> str:
    text = f"Assumes: {cell.assumes}. Amplification: {cell.amplification}. Neighbours: {cell.relation}"
    if cell.bound_of:
        text = f"the bound for {cell.bound_of}; no smaller one is known. {text}"
    if cell.simulated:
        return f"{text}. Simulated: the protocol that this rests on"
    return text


def _letter(number: int) -> str:
    if number < 26:
        return chr(ord("a") + number)
    return f"{number}"
