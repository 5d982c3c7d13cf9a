"""A run and the lifetime budget of its data: what it reserves before it releases anything, and what it gives back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv import privacy
from fedpriv.errors import ConfigError, LedgerError
from fedpriv.planning.plan import Plan
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.runs.extending import EarlierRun
from fedpriv.runs.identity import KNOWN_NOISE
from fedpriv.runs.results import Ended
from fedpriv.runs.run_files import config_in, fixed_data
from fedpriv.storage.identity import digest


@dataclass(frozen=True)
class BudgetReservation:
    """The part of a lifetime budget that a run reserves before its first release, and closes at its end.

    Attributes:
        budget: The budget.
        plan: What the run is going to release.
        run_name: Random name of the run.
        start: Random name of this process start.
        folder: The run's folder; None for a run in memory.
        is_resumed: Whether the run has begun before.
        seen: How many of its rounds may have been released before this process start, here or in a copy of its folder.
        not_covered: What the run reveals of the data that epsilon does not count.
    """

    budget: privacy.Budget
    plan: Plan
    run_name: str
    start: str
    folder: Path | None
    is_resumed: bool
    seen: int
    not_covered: tuple[str, ...]

    @staticmethod
    def of(
        plan: Plan,
        run_name: str,
        folder: Path | None,
        *,
        is_resumed: bool,
        not_covered: tuple[str, ...],
        earlier: EarlierRun | None = None,
    ) -> BudgetReservation | None:
        """Returns the reservation of a run that is about to begin, to go on, or to extend an `earlier` one.

        None if the run has no budget.

        Raises:
            LedgerError: the budget cannot be read, or the run began with another one, or its first rounds did.
        """
        # the id of the budget that the first rounds drew on, and the folder that says so
        if earlier is None:
            budget_id = _budget_id_in(folder)
            first_folder = folder
        else:
            budget_id = earlier.budget
            first_folder = earlier.folder
        path = plan.privacy.budget
        if earlier is not None and path is not None and budget_id is None:
            fix = "leave privacy.budget out, or begin a new run"
            raise LedgerError(
                f"{earlier.folder} was not paid for by {path}, and the run that extends it holds it; {fix}"
            )
        if path is None and budget_id is None:
            return None
        if path is None:
            fix = "name that one as privacy.budget"
            raise LedgerError(f"{first_folder} began with a budget, and would go on without it; {fix}")
        if KNOWN_NOISE in not_covered:
            fix = "leave it out: a budget counts runs whose noise nobody knows"
            raise ConfigError("secret_seed", "(given)", fix)
        budget = privacy.Budget(path)
        if budget_id not in (None, budget.terms.id):
            fix = f"began with another budget than {path}; name that one as privacy.budget"
            raise LedgerError(f"{first_folder} {fix}")
        return BudgetReservation(
            budget=budget,
            plan=plan,
            run_name=run_name,
            start=secrets.token_hex(16),
            folder=folder,
            is_resumed=is_resumed,
            seen=budget.rounds_of(run_name) if is_resumed else 0,
            not_covered=not_covered,
        )

    @property
    def planned_cost(self) -> privacy.RunCost:
        """The cost of what the run may release: its plan, without what an earlier run released that it extends."""
        return self._cost(self.plan.releases.records)

    def check(self) -> None:
        """Refuses a run that the budget does not allow.

        Raises:
            PrivacyError: see `Budget.check`; or an earlier copy of the budget was put back.
        """
        if self._is_reserved:
            return
        if self.is_resumed and _records_in(self.folder):
            raise LedgerError(
                f"{self.budget.path} holds no reservation of {self._name}, which has released answers: an earlier copy "
                "was put back, or the run began without a budget. Restore its newest copy, or start a new run"
            )
        self.budget.check(self.planned_cost)

    def reserve(self, rounds: int) -> None:
        """Charges the whole plan to the budget, unless the run goes on with what it reserved before.

        Args:
            rounds: Rounds from 0 on that the run may release until it calls `advance`.

        Raises:
            PrivacyError: see `Budget.reserve`.
            LedgerError: see `Budget.begin`.
        """
        if not self._is_reserved:
            self.budget.begin(self.run_name, self.start, self.seen, 0)  # first: a reservation always has a mark
            self.budget.reserve(self.planned_cost)
        self.budget.begin(self.run_name, self.start, self.seen, rounds)

    def advance(self, rounds: int) -> None:
        """Notes in the budget that the run may release more rounds; see `Budget.advance`."""
        self.budget.advance(self.run_name, self.start, rounds)

    def close(self, ended: Ended, records: Sequence[Record]) -> None:
        """Notes the end of the run in the budget; gives back what was not released if a public limit ended the run.

        Other ends may depend on the data, and so would the amount given back. A run that extends an earlier one gets
        nothing back: its ledger begins with the releases of that run, which its plan does not have.
        """
        if ended == "left":
            return
        self.advance(len(self.plan.evaluations))
        used = None
        if ended == "budget":
            planned = self.plan.releases.records[: len(records)]
            if [_query_key(record) for record in records] == [_query_key(record) for record in planned]:
                used = self._cost(planned)
        self.budget.close(self.run_name, ended, used)

    @property
    def _is_reserved(self) -> bool:
        """Whether this run has reserved already."""
        return self.is_resumed and self.budget.holds(self.run_name)

    @property
    def _name(self) -> str:
        if self.folder is None:
            return "a run in memory"
        return str(self.folder)

    def _cost(self, records: Sequence[Record]) -> privacy.RunCost:
        plan = self.plan
        config = None
        if self.folder is not None:
            config = config_in(self.folder)
        return privacy.RunCost(
            self._name,
            records,
            plan.n_clients,
            data_digest(config),
            not_covered=self.not_covered,
            run_name=self.run_name,
            float64_noise=plan.float64_noise,
        )


def data_digest(config: dict[str, Any] | None) -> str | None:
    """Returns a name of the clients' examples, by what determines them; None if nothing does (`fixed_data`)."""
    data = fixed_data(config)
    if data is None:
        return None
    return f"published/{digest(data)}"


def _ledger_in(folder: Path | None) -> LedgerFile | None:
    """Reads the ledger in a folder; None if there is none."""
    if folder is None or not (folder / "ledger.jsonl").exists():
        return None
    return LedgerFile.read(folder / "ledger.jsonl")


def _budget_id_in(folder: Path | None) -> str | None:
    """Returns the id of the budget that the run in a folder began with, by the header of its ledger."""
    ledger = _ledger_in(folder)
    if ledger is None:
        return None
    return ledger.header.budget


def _records_in(folder: Path | None) -> Sequence[Record]:
    """Returns what the run in a folder has released."""
    ledger = _ledger_in(folder)
    if ledger is None:
        return []
    return ledger.records


def _query_key(record: Record) -> tuple[int, str, int]:
    return record.round, record.query, record.index
