"""Computes the epsilon of a run for the check before each release, for each report, and at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpriv.planning.plan import Plan
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.milestones import Milestones
from fedpriv.privacy.accounting.plan_filter import PlanFilter, count_within_limit
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.ledger import Ledger, PrivacyFilter
from fedpriv.privacy.record import Record
from fedpriv.privacy.record_table import RecordTable
from fedpriv.runs.results import Ended

STOPPED_EARLY: tuple[Ended, ...] = ("strategy", "nonfinite", "metric")
CHARGED_WHOLE: tuple[Ended, ...] = (*STOPPED_EARLY, "left")
VOIDED: Ended = "state"


class RunAccountant:
    """The epsilon of one run.

    Args:
        plan: The planned releases.
        attempt: Label of the releases that the run makes now; see `fedpriv.privacy.record.Record`.
        not_covered: Facts about the data that the run reveals and epsilon does not count.
        float64_noise: Noise that is added in float64 and that the records do not mark as float64.

    Attributes:
        guard: The privacy filter: admits the releases of the plan, as far as the target epsilon allows. In a run
            without privacy it admits and counts everything.
    """

    def __init__(
        self,
        plan: Plan,
        attempt: int = 0,
        not_covered: tuple[str, ...] = (),
        float64_noise: tuple[str, ...] = (),
    ) -> None:
        self._plan = plan
        self._attempt = attempt
        self._not_covered = not_covered
        self._float64_noise = float64_noise
        self._accountant = Accountant(plan.n_clients, plan.privacy.delta)
        self.guard: PrivacyFilter = self._accountant
        if plan.privacy.private:
            self.guard = PlanFilter(
                plan.releases.records, self._accountant, plan.privacy.epsilon, attempt=attempt, fits=plan.calibrated
            )
        self._limit = plan.enforced_target
        self._spent: tuple[int, PrivacySpent] | None = None

    def follow(self, ledger: Ledger, finished: int) -> None:
        """Sets the ledger from which the accountant reports. The ledger was opened with `guard`.

        Args:
            ledger: The ledger.
            finished: Number of rounds after which the run begins or resumes.
        """
        self._ledger = ledger
        # a round on record is not made again, nor is one before it
        self._first_round = max(finished, ledger.next_round)
        plan = self._plan
        self._milestones = Milestones(
            self._still_planned(finished), plan.n_clients, plan.privacy.delta, released=ledger.records
        )

    def allowed(self, records: Sequence[Record]) -> list[Record]:
        """Returns the next planned releases that the target allows, labelled as releases of this run."""
        records = [record.changed(attempt=self._attempt) for record in records]
        if self._plan.privacy.epsilon is None or self._plan.calibrated:
            return records
        return records[: count_within_limit(self._accountant, records, self._plan.privacy.epsilon)]

    @property
    def is_exhausted(self) -> bool:
        """True if a release was rejected because it would have exceeded the target."""
        return isinstance(self.guard, PlanFilter) and self.guard.is_exhausted

    def reported(self, ended: Ended, finished: int) -> float:
        """Returns an upper bound on the epsilon of the rounds so far that is fast to compute, for a report.

        It is the smallest of three bounds: the quick bound, the target, and the tight bound of the plan up to one of
        the next rounds. The target is used unless an earlier run, which this run extends, has spent more.
        """
        if ended == VOIDED:
            return math.inf
        if ended in STOPPED_EARLY:
            return self.charged_at_end(ended, finished).epsilon
        privacy = self._plan.privacy
        if not privacy.private:
            return self._accountant.quick_epsilon()
        smallest = math.inf
        if self._limit is not None:
            smallest = self._limit
        is_tight = privacy.delta == 0 or self._accountant.is_exact
        if finished and not is_tight:
            smallest = min(smallest, self._milestones.epsilon(finished))
        return min(smallest, self._accountant.quick_epsilon(smallest))

    def spent(self) -> PrivacySpent:
        """Returns a tight upper bound on the privacy cost so far."""
        count = len(self._ledger.records)
        if self._spent is None or self._spent[0] != count:
            self._spent = count, self._with_conditions(self._accountant.spent())
        return self._spent[1]

    def charged_at_end(self, ended: Ended, finished: int) -> PrivacySpent:
        """Returns the privacy cost of a run that `ended` after `finished` rounds.

        If the run stopped before its plan ended, the stop may depend on data, so all planned releases are counted. A
        stop at the target epsilon does not depend on data, so only the releases made are counted.
        """
        plan = self._plan
        charged = self.records(ended, finished)
        if len(charged) == len(self._ledger.records):
            return self.spent()
        spent = account(charged, plan.n_clients, plan.privacy.delta).at_most(self._limit)
        return self._with_conditions(spent)

    def _with_conditions(self, spent: PrivacySpent) -> PrivacySpent:
        """Returns the cost with the facts that records omit: float64 noise, and facts about the data that epsilon does
        not cover.
        """
        added_in_float64 = (*spent.float64_noise, *self._float64_noise)
        return replace(spent, float64_noise=added_in_float64, not_covered=self._not_covered)

    def records(self, ended: Ended, finished: int) -> tuple[Record, ...]:
        """Returns the releases that `charged_at_end` counts. Releases that were planned but not made have the label
        `attempt` and the random allocation of this run.
        """
        remaining: Sequence[Record] = ()
        if ended in CHARGED_WHOLE:
            remaining = self._still_planned(finished)
        return (*self._ledger.records, *remaining)

    def _still_planned(self, finished: int) -> RecordTable:
        """Returns the releases of the plan after its first `finished` rounds, with this attempt's draws.

        The result is empty for a run without privacy, because the plan does not determine its releases.
        """
        if not self._plan.privacy.private:
            return RecordTable()
        return self._plan.releases.records.since(max(finished, self._first_round)).of_attempt(self._attempt)
