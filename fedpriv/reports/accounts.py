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
        spent: Of all together, each against whoever sees what its own trust allows.
        runs: Each run's name and its own price at the same delta.
        basic: Sum of epsilons and of deltas, which holds also where later runs depend on the answers of earlier ones.
        cells: The bounds for every adversary and unit.
        notes: What else is to be known.
    """

    spent: PrivacySpent
    runs: tuple[tuple[str, PrivacySpent], ...]
    basic: tuple[float, float]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What `fedpriv account --json` prints."""
        spent, epsilon = self.spent, strict_json.epsilon
        facts = ("delta", "unit", "relation", "trust", "accountant", "non_private", "not_covered")
        return strict_json.plain(
            {
                "epsilon": epsilon(spent.epsilon),
                **{name: getattr(spent, name) for name in facts},
                "per_client_epsilon": [epsilon(one) for one in spent.per_client],
                "basic": {"epsilon": epsilon(self.basic[0]), "delta": self.basic[1]},
                "runs": [{"run": name, "epsilon": epsilon(own.epsilon)} for name, own in self.runs],
                "matrix": [{**asdict(cell), "epsilon": epsilon(cell.epsilon)} for cell in self.cells],
                "notes": self.notes,
            }
        )

    def rows(self) -> dict[str, str]:
        """The prices as names and values."""
        rows = {name: str(own) for name, own in self.runs}
        if len(self.runs) > 1:
            rows |= {"together": str(self.spent)}
            epsilon, delta = self.basic
            if math.isfinite(epsilon):
                rows["if answers chose later runs"] = f"epsilon={round_up(epsilon)} at delta={delta:.6g}"
        return rows

    def table(self) -> list[str]:
        """A line for each adversary, a column for each unit; letters refer to `remarks`."""
        units, lines = list(dict.fromkeys(cell.unit for cell in self.cells)), dict[str, list[str]]()
        remarks = self._remarks()
        for cell in self.cells:
            lines.setdefault(cell.adversary, []).append(f"{_shown(cell)} [{remarks[_remark(cell)]}]")
        return aligned([["adversary", *units], *([name, *cells] for name, cells in lines.items())])

    def remarks(self) -> list[str]:
        """What the letters of the table mean."""
        return [f"[{letter}] {text}" for text, letter in self._remarks().items()]

    def _remarks(self) -> dict[str, str]:
        found = list(dict.fromkeys(_remark(cell) for cell in self.cells))
        return {text: _letter(number) for number, text in enumerate(found)}


def account_for(
    runs: Sequence[RunCost],
    deltas: Sequence[float],
    *,
    delta: float | None = None,
    accountant: str | None = None,
    colluders: int = 1,
    group: int = 10,
) -> Account:
    """The price of runs, together and against each adversary.

    Args:
        runs: What they are charged.
        deltas: The delta of each run.
        delta: Of all together; the smallest of the runs' own by default.
        accountant: See `composition.compose`.
        colluders: Number of clients that collude.
        group: Number of units in a group.

    Raises:
        ConfigError: an argument is out of range.
        PrivacyError: the runs protect nothing in common, or share noise.
    """
    chosen = min(deltas) if delta is None else delta
    together = compose(runs, chosen, accountant)
    if len(runs) > 1:
        own = [compose([run], chosen, accountant) for run in runs]
    else:
        own = [together]
    cells = matrix(runs, chosen, accountant, colluders=colluders, group=group)
    return Account(
        together,
        tuple((run.name, one) for run, one in zip(runs, own, strict=True)),
        basic(own),
        cells,
        tuple(_notes(runs)),
    )


def _notes(runs: Sequence[RunCost]) -> list[str]:
    found = list[str]()
    if len({(run.data, run.n_clients) for run in runs}) > 1:
        found.append(
            "the runs' data differ, by their configurations: counted as if one unit were in all of them, at the client "
            "that pays most in each; a unit that is in one of them pays for that one alone"
        )
    elif len(runs) > 1 and runs[0].data is None:
        found.append("whose data the runs read is not on record: counted as if one unit were in all of them")
    if len({kind[:2] for run in runs for kind in run.kinds}) > 1:
        found.append(
            "the runs protect different units or relations: counted for what all of them protect. To replace a unit is "
            "to remove one and add another, and a client's protection covers each of its examples"
        )
    if len(runs) > 1:
        found.append(
            "together: if the number of runs and their noise do not depend on the answers of earlier ones; if they do, "
            "as when the best of many settings is looked for, the sum holds"
        )
    return found


def unfinished(folder: Path) -> str:
    """A note on a run that is not finished."""
    return f"{folder} is not finished: counted so far. If it is left here, the whole plan is charged"


def _shown(cell: Cell) -> str:
    if math.isinf(cell.epsilon):
        return "no bound"
    return f"{round_up(cell.epsilon)} ({cell.accountant})"


def _remark(cell: Cell) -> str:
    if cell.bound_of:
        stronger = f"the bound for {cell.bound_of}; no smaller one is known. "
    else:
        stronger = ""
    told = f"{stronger}Assumes: {cell.assumes}. Amplification: {cell.amplification}. Neighbours: {cell.relation}"
    if cell.simulated:
        return f"{told}. Simulated: the protocol that this rests on"
    return told


def _letter(number: int) -> str:
    if number < 26:
        return chr(ord("a") + number)
    return f"{number}"
