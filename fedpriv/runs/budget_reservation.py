"""Reserves a run's share of the lifetime budget of its data before any release, and returns unused parts at the end."""

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
from fedpriv.runs.preceding import PrecedingRun
from fedpriv.runs.results import Ended
from fedpriv.runs.run_files import describe_fixed_data, read_config
from fedpriv.storage.identity import digest


@dataclass(frozen=True)
class BudgetReservation:
    """The part of a lifetime budget that a run reserves before its first release, and closes at its end.

    Attributes:
        budget: The budget.
        plan: The planned releases of the run.
        run_name: Random name of the run.
        start: Random name of this process start.
        folder: The run's folder; None for a run in memory.
        is_resumed: True if the run has begun before.
        seen: Number of its rounds that may have been released before this process start, here or in a copy of its
            folder.
        not_covered: Facts about the data that the run reveals and epsilon does not cover.
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
        earlier: EarlierRun | PrecedingRun | None = None,
    ) -> BudgetReservation | None:
        """Returns the reservation of a run that is about to start, to resume, or to extend or count an `earlier` run.

        Returns None if the run has no budget.

        Raises:
            LedgerError: If the budget cannot be read, or if the run, or the earlier run that it extends, began with
                another budget.
        """
        # the id of the budget that the first rounds used, and the folder that contains it
        if earlier is None:
            budget_id = _budget_id_in(folder)
            first_folder = folder
        else:
            budget_id = earlier.budget
            first_folder = earlier.folder
        path = plan.privacy.budget
        if earlier is not None and path is not None and budget_id is None:
            fix = "leave privacy.budget out, or start a new run"
            raise LedgerError(
                f"the earlier run in {earlier.folder} was not charged to the budget {path}, but the extended run "
                f"would include its releases; {fix}"
            )
        if path is None and budget_id is None:
            return None
        if path is None:
            fix = "set privacy.budget to the file of that budget"
            raise LedgerError(f"the run in {first_folder} began with a budget, but would continue without it; {fix}")
        if KNOWN_NOISE in not_covered:
            fix = "a budget accepts only runs with secret noise: leave secret_seed out"
            raise ConfigError("secret_seed", "(given)", fix)
        budget = privacy.Budget(path)
        if budget_id not in (None, budget.terms.id):
            fix = f"began with another budget than {path}; set privacy.budget to the file of the first budget"
            raise LedgerError(f"the run in {first_folder} {fix}")
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
        """Privacy cost of the releases that the run may make, which are its plan without the releases of an earlier run
        that it extends.
        """
        return self._cost(self.plan.releases.records)

    def check(self) -> None:
        """Raises an error if the budget does not allow the run.

        Raises:
            PrivacyError: See `Budget.check`. Also raised if an earlier copy of the budget was restored.
        """
        if self._is_reserved:
            return
        if self.is_resumed and _records_in(self.folder):
            raise LedgerError(
                f"{self.budget.path} contains no reservation of {self._name}, which has released results: the budget "
                "file was replaced by an earlier copy, or the run began without this budget. Restore the newest "
                "copy, or start a new run"
            )
        self.budget.check(self.planned_cost)

    def reserve(self, rounds: int) -> None:
        """Charges the whole plan to the budget, unless the run resumes with an existing reservation.

        Args:
            rounds: Number of rounds, from round 0, that the run may release before it calls `advance`.

        Raises:
            PrivacyError: See `Budget.reserve`.
            LedgerError: See `Budget.begin`.
        """
        if not self._is_reserved:
            self.budget.begin(self.run_name, self.start, self.seen, 0)  # first: a reservation always has a mark
            self.budget.reserve(self.planned_cost)
        self.budget.begin(self.run_name, self.start, self.seen, rounds)

    def advance(self, rounds: int) -> None:
        """Records in the budget that the run may release more rounds; see `Budget.advance`."""
        self.budget.advance(self.run_name, self.start, rounds)

    def close(self, ended: Ended, records: Sequence[Record]) -> None:
        """Records the end of the run in the budget. If a public limit ended the run, the unused part of the reservation
        is returned to the budget.

        Any other end may depend on the data; the returned amount would then reveal something about the data. Nothing is
        returned for a run that extends an earlier run, because its ledger begins with the releases of the earlier run,
        which are not part of its plan.
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
        """True if this run has already made its reservation."""
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
            config = read_config(self.folder)
        return privacy.RunCost(
            self._name,
            records,
            plan.n_clients,
            digest_data(config),
            not_covered=self.not_covered,
            run_name=self.run_name,
            float64_noise=plan.float64_noise,
        )


def digest_data(config: dict[str, Any] | None) -> str | None:
    """Returns a digest that identifies the clients' examples, computed from the settings that determine them
    (`describe_fixed_data`); None if the settings do not determine them.
    """
    data = describe_fixed_data(config)
    if data is None:
        return None
    return f"published/{digest(data)}"


def _ledger_in(folder: Path | None) -> LedgerFile | None:
    """Reads the ledger in a folder; returns None if there is none."""
    if folder is None or not (folder / "ledger.jsonl").exists():
        return None
    return LedgerFile.read(folder / "ledger.jsonl")


def _budget_id_in(folder: Path | None) -> str | None:
    """Returns the id of the budget with which the run in a folder began, from the header of its ledger."""
    ledger = _ledger_in(folder)
    if ledger is None:
        return None
    return ledger.header.budget


def _records_in(folder: Path | None) -> Sequence[Record]:
    """Returns the releases of the run in a folder, without those of an earlier run."""
    ledger = _ledger_in(folder)
    if ledger is None:
        return []
    return ledger.own_records


def _query_key(record: Record) -> tuple[int, str, int]:
    return record.round, record.query, record.index
