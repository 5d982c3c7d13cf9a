"""A run and the lifetime budget of its data: what it reserves before it releases anything, and what it gives back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.errors import LedgerError
from fedpriv.planning.plan import Plan
from fedpriv.privacy.budget import Budget
from fedpriv.privacy.composition import RunCost
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.extending import EarlierRun
from fedpriv.runs.results import Ended
from fedpriv.runs.run_accountant import rest_of
from fedpriv.runs.run_files import config_in
from fedpriv.storage.identity import digest


@dataclass(frozen=True)
class BudgetReservation:
    """What a run has to do with a budget.

    Attributes:
        budget: The budget.
        plan: What the run is going to release.
        noise: Public name of the noise that it draws.
        attempt: Which records of its ledger have that noise.
        folder: The run's folder; None for a run in memory.
        finished: Number of rounds at the checkpoint from which it goes on; None for a new run.
        not_covered: What it reveals besides.
    """

    budget: Budget
    plan: Plan
    noise: str
    attempt: int
    folder: Path | None
    finished: int | None
    not_covered: tuple[str, ...]

    @staticmethod
    def of(
        plan: Plan,
        randomness: Randomness,
        folder: Path | None,
        finished: int | None,
        not_covered: tuple[str, ...],
        earlier: EarlierRun | None = None,
    ) -> BudgetReservation | None:
        """Of a run that is about to begin or to go on, or to extend an `earlier` one; None if it has no budget.

        Raises:
            LedgerError: the budget cannot be read, or the run began with another one, or its first rounds did.
        """
        if earlier is None:
            begun = _begun_with(folder)
        else:
            begun = earlier.budget
        path = plan.privacy.budget
        if earlier is not None and path is not None and begun is None:
            fix = "leave privacy.budget out, or begin a new run"
            raise LedgerError(
                f"{earlier.folder} was not paid for by {path}, and the run that extends it holds it; {fix}"
            )
        if earlier is None:
            folder_of_begun = folder
        else:
            folder_of_begun = earlier.folder
        if path is None and begun is None:
            return None
        if path is None:
            fix = "name that one as privacy.budget"
            raise LedgerError(f"{folder_of_begun} began with a budget, and would go on without it; {fix}")
        budget = Budget(path)
        if begun not in (None, budget.terms.id):
            fix = f"began with another budget than {path}; name that one as privacy.budget"
            raise LedgerError(f"{folder_of_begun} {fix}")
        return BudgetReservation(
            budget=budget,
            plan=plan,
            noise=randomness.noise_name(),
            attempt=randomness.attempt,
            folder=folder,
            finished=finished,
            not_covered=not_covered,
        )

    @property
    def wanted(self) -> RunCost:
        """What the run may release with this noise: its plan, or the rest of it after a resume with fresh noise."""
        if self.attempt == 0:
            rest = self.plan.records
        else:
            rest = rest_of(self.plan, self.finished or 0)
        return self._spending(rest)

    def check(self) -> None:
        """Refuse a run that the budget does not allow.

        Raises:
            PrivacyError: see `Budget.check`; or an earlier copy of the budget was put back.
        """
        if self._goes_on:
            return
        if any(record.attempt == self.attempt for record in _released(self.folder)):
            raise LedgerError(
                f"{self.budget.path} holds no reservation of {self._name}, which has released answers: an earlier copy "
                "was put back, or the run began without a budget. Restore its newest copy, or start a new run"
            )
        self.budget.check(self.wanted)

    def reserve(self) -> None:
        """Charge the run, unless it goes on with what it reserved before.

        Raises:
            PrivacyError: see `Budget.reserve`.
        """
        if not self._goes_on:
            self.budget.reserve(self.wanted)

    def close(self, ended: Ended, records: Sequence[Record]) -> None:
        """The run has ended. What was not released is given back where a public limit ended it, else nothing."""
        if ended == "left":
            return
        made = [record for record in records if record.attempt == self.attempt]
        planned = self.plan.records[: len(made)]
        in_order = [_key(record) for record in made] == [_key(record) for record in planned]
        used = None
        if ended == "budget" and self.attempt == 0 and in_order:
            used = self._spending(planned)
        self.budget.close(self.noise, ended, used)

    @property
    def _goes_on(self) -> bool:
        """Whether this run has reserved already: one that is new cannot have, whoever drew its noise."""
        return self.finished is not None and self.budget.holds(self.noise)

    @property
    def _name(self) -> str:
        if self.folder is None:
            return "a run in memory"
        return str(self.folder)

    def _spending(self, records: Sequence[Record]) -> RunCost:
        plan = self.plan
        config = None
        if self.folder is not None:
            config = config_in(self.folder)
        return RunCost(
            self._name, records, plan.n_clients, data_of(config), not_covered=self.not_covered, noise=self.noise
        )


def data_of(config: dict[str, Any] | None) -> str | None:
    """Digest of what the clients' examples follow from, in a configuration; None if that is not known."""
    if config is None or "data" not in config:
        return None
    return digest(json.dumps([config["data"], config.get("problem")], sort_keys=True, default=str))


def _begun_with(folder: Path | None) -> str | None:
    """The budget that a run began with, by the header of its ledger."""
    if folder is None:
        path = None
    else:
        path = folder / "ledger.jsonl"
    if path is None or not path.exists():
        return None
    return LedgerFile.read(path).header.budget


def _released(folder: Path | None) -> Sequence[Record]:
    if folder is None:
        path = None
    else:
        path = folder / "ledger.jsonl"
    if path is None or not path.exists():
        return []
    return LedgerFile.read(path).records


def _key(record: Record) -> tuple[int, str, int]:
    return record.round, record.query, record.index
