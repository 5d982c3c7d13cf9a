"""The epsilon of a run: checked before each answer, in each report, and at the end."""

from __future__ import annotations

from dataclasses import replace

from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.ledger import FollowerLedger, Ledger
from fedpriv.privacy.record import Record
from fedpriv.runs.planning import Plan
from fedpriv.runs.results import Ended

STOPPED_EARLY: tuple[Ended, ...] = ("strategy", "nonfinite", "metric")
_WHOLE_PLAN: tuple[Ended, ...] = (*STOPPED_EARLY, "left")


def rest_of(plan: Plan, finished: int) -> list[Record]:
    """The releases of a plan after its first `finished` rounds; none where there is no promise."""
    if plan.privacy.private:
        return [record for record in plan.records if record.round >= finished]
    return []


class RunAccountant:
    """The epsilon of one run.

    Args:
        plan: The releases that were planned.
        not_covered: What the run reveals about the data that epsilon does not count.

    Attributes:
        guard: Counts each record before its answer is handed out, and refuses the one that would pass the limit.
    """

    def __init__(self, plan: Plan, not_covered: tuple[str, ...] = ()) -> None:
        self._plan, self._not_covered = plan, not_covered
        self.guard = self._reported = self._accountant()
        self._spent: tuple[int, PrivacySpent] | None = None

    def follow(self, ledger: Ledger | FollowerLedger) -> None:
        """Count the records of this ledger, which was opened with `guard`."""
        self._ledger, self._counted = ledger, 0
        # a repeated round is reported with the epsilon that it had, though the guard counts all that was released
        if ledger.replays:
            self._reported = self._accountant()
        self.catch_up()

    def catch_up(self) -> None:
        """Count for reports the records since the last call."""
        records = self._ledger.records
        if self._reported is not self.guard:
            for record in records[self._counted :]:
                self._reported.admit(record)
            if not self._ledger.replays:
                self._reported = self.guard
        self._counted = len(records)

    def reported(self, ended: Ended, finished: int) -> float:
        """Quick upper bound on the epsilon of the rounds so far, for a report."""
        if ended in STOPPED_EARLY:
            return self.at_end(ended, finished).epsilon
        return self._reported.so_far()

    def spent(self) -> PrivacySpent:
        """Tight upper bound on what has been spent so far."""
        count = len(self._ledger.records)
        if self._spent is None or self._spent[0] != count:
            self._spent = count, self.guard.spent()
        return self._spent[1]

    def at_end(self, ended: Ended, finished: int) -> PrivacySpent:
        """What a run is charged that `ended` after `finished` rounds.

        If it stopped before its plan ended, the stop may depend on data, so the whole plan is charged. A stop that the
        budget forced does not depend on data.
        """
        plan = self._plan
        if len(charged := self.records(ended, finished)) == len(self._ledger.records):
            return replace(self.spent(), not_covered=self._not_covered)
        spent = account(charged, plan.n_clients, plan.privacy.delta).at_most(plan.privacy.epsilon)
        return replace(spent, not_covered=self._not_covered)

    def records(self, ended: Ended, finished: int) -> tuple[Record, ...]:
        """The releases that `at_end` charges."""
        if ended in _WHOLE_PLAN:
            rest = rest_of(self._plan, finished)
        else:
            rest = []
        return (*self._ledger.records, *rest)

    def _accountant(self) -> Accountant:
        plan, privacy = self._plan, self._plan.privacy
        return Accountant(plan.n_clients, privacy.delta, privacy.epsilon if privacy.private else None, plan.records)
