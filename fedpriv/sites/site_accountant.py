"""Accountant of a site: composes its releases in all its federations, and compares them with its budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedpriv.privacy import Record
from fedpriv.privacy.accounting import Accountant, PlanFilter, PrivacySpent, count_within_limit


class SiteAccountant:
    """Counts every release of a site, for any plan, and raises an error for one that would exceed the site's budget.

    Every plan of a site admits its releases here, so that plans which overlap in time, in any order and with restarts
    in between, spend one budget. After a restart it is created from all ledgers of the site, which are written before a
    value is returned. It may therefore count a release that was never received, but it misses none that was received.

    Guarantee: after `admit`, all releases counted so far are together within the budget, if those on record at the
    start were. If they were not (because the owner has lowered the budget since), nothing is admitted, but the site can
    still be started, queried and stated.

    Args:
        epsilon: Largest total spending of the site, over all plans.
        delta: Failure probability of this bound.
        on_record: The site's share (`fedpriv.sites.plan_filter.single_site_record`) of every record of its ledgers, by
            plan.
    """

    def __init__(self, epsilon: float, delta: float, on_record: Mapping[str, Sequence[Record]]) -> None:
        self._epsilon = epsilon
        self._delta = delta
        self._lock = threading.RLock()
        self._released = {plan: list(records) for plan, records in on_record.items()}
        self._accountant = Accountant(1, delta)
        for records in on_record.values():
            for record in records:
                self._accountant.count(record)  # it was released: rejecting it now would only hide it
        self._filters: dict[str, PlanFilter] = {}
        self._first_records: dict[str, Sequence[Record]] = {}

    def add_plan(self, plan: str, planned: Sequence[Record]) -> None:
        """Registers the releases that a plan may make. This spends and reserves nothing.

        Args:
            plan: Hash of the plan.
            planned: The site's share of the plan's records.

        Raises:
            PrivacyError: If the plan has another privacy unit or neighbouring relation than the site's other plans, so
                that their total cost is unknown.
        """
        with self._lock:
            self.check_plan(plan, planned)
            plan_filter = PlanFilter(planned, self._accountant, self._epsilon)
            for record in self._released.get(plan, ()):
                plan_filter.mark(replace(record, attempt=0))
            self._filters[plan] = plan_filter
            self._first_records[plan] = planned[:1]

    def check_plan(self, plan: str, planned: Sequence[Record]) -> None:
        """Raises an error for a plan with another guarantee than the site's other plans; registers and counts nothing.

        Args:
            plan: Hash of the plan.
            planned: The site's share of the plan's records.

        Raises:
            PrivacyError: If the plan has another privacy unit or neighbouring relation.
        """
        with self._lock:
            trial = Accountant(1, self._delta)
            for records in [*self._released.values(), *self._first_records.values(), planned]:
                if records:
                    trial.count(records[0])

    def admit(self, plan: str, record: Record, left_out: frozenset[int] = frozenset()) -> None:
        """Counts a release.

        Args:
            plan: Hash of the registered plan that requests it.
            record: The site's share of its record.
            left_out: Rounds of the plan in which the site will not reply.

        Raises:
            UnplannedRelease: If the plan does not have it at this cost, or it was already released.
            BudgetExhausted: If all plans together would exceed the budget with it; nothing was counted.
            PrivacyError: If it has another privacy unit or neighbouring relation than the releases before it.
        """
        with self._lock:
            self._filters[plan].leave_out(left_out)
            self._filters[plan].admit(replace(record, attempt=0))
            self._released.setdefault(plan, []).append(record)

    def count_void(self, plan: str, record: Record) -> None:
        """Counts a record that voids every bound on epsilon for a plan's releases; the site then admits nothing.

        Args:
            plan: Hash of the plan.
            record: The site's share of the record.
        """
        with self._lock:
            self._accountant.count(record)
            self._released.setdefault(plan, []).append(record)

    def first_refused(self, coming: Sequence[Record]) -> int | None:
        """Returns the first round of `coming` that the budget does not allow if all before it are released.

        Nothing is counted. Other plans may spend in the meantime, so fewer rounds may be allowed than returned here.

        Args:
            coming: The site's share of the plan's remaining records, in order of their rounds.

        Returns:
            The round; None if the budget allows all of them.
        """
        with self._lock:
            n_allowed = count_within_limit(self._accountant, coming, self._epsilon)
        if n_allowed == len(coming):
            return None
        return coming[n_allowed].round

    def spent(self) -> PrivacySpent:
        """Tight upper bound on the spending of the site in all its plans together."""
        with self._lock:
            return self._accountant.spent()
