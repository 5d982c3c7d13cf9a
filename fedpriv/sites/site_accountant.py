"""The one accountant of a site: what it has released in all its federations together, held against its budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from fedpriv.errors import BudgetExhausted
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.record import Record


class SiteAccountant:
    """Counts every release of a site, whichever plan asked for it, and refuses the one that would pass its budget.

    Every plan of a site admits its releases here, so that plans which overlap in time, in any order and with restarts
    in between, spend one budget. After a restart it is made from all ledgers of the site, which are written before a
    value is handed out: it may then count a release that nobody received, and never misses one that somebody did.

    Guarantee: after `admit`, all releases counted so far are together within the budget, as long as those that were on
    record at the start were. If they were not (a budget that its owner has lowered since), nothing is admitted, and the
    site can still be started, questioned and stated.

    Args:
        epsilon: The most that the site may spend, over all plans.
        delta: Failure probability at which that holds.
        on_record: The site's own part (`fedpriv.sites.plan_filter.of_one`) of every record of its ledgers, by plan.
    """

    def __init__(self, epsilon: float, delta: float, on_record: Mapping[str, Sequence[Record]]) -> None:
        self._epsilon = epsilon
        self._delta = delta
        self._lock = threading.RLock()
        self._released = {plan: list(records) for plan, records in on_record.items()}
        self._planned: dict[str, Sequence[Record]] = {}
        self._accountant = self._make([record for records in on_record.values() for record in records])

    def add_plan(self, plan: str, planned: Sequence[Record]) -> None:
        """Announces the releases of a plan, so that those that fit the budget are admitted quickly.

        Nothing is spent or reserved by that.

        Args:
            plan: Hash of the plan.
            planned: The site's own part of the plan's records.

        Raises:
            PrivacyError: the plan protects another unit or relation than the site's other plans: what they cost
                together is not known.
        """
        with self._lock:
            self.check_plan(plan, planned)
            self._planned = {**self._planned, plan: planned}
            # what a plan has released takes the place of what it had announced
            unannounced = [self._released[other] for other in self._released if other not in self._planned]
            announced = [record for records in [*self._planned.values(), *unannounced] for record in records]
            self._accountant = self._make(announced)

    def check_plan(self, plan: str, planned: Sequence[Record]) -> None:
        """Refuses a plan that does not protect what the site's other plans do; nothing is announced or counted.

        Args:
            plan: Hash of the plan.
            planned: The site's own part of the plan's records.

        Raises:
            PrivacyError: the plan protects another unit or relation.
        """
        with self._lock:
            trial = self._make(())
            for records in {**self._planned, plan: planned}.values():
                if records:
                    trial.count(records[0])

    def admit(self, plan: str, record: Record) -> None:
        """Counts a release.

        Args:
            plan: Hash of the plan that asked for it.
            record: The site's own part of its record.

        Raises:
            BudgetExhausted: with it, all plans together would pass the budget; nothing was counted.
            PrivacyError: it protects another unit or relation than the releases before it.
        """
        with self._lock:
            self._accountant.admit(record)
            self._released.setdefault(plan, []).append(record)

    def first_refused(self, coming: Sequence[Record]) -> int | None:
        """Returns the first round of `coming` that the budget does not allow if all before it are released.

        Nothing is counted. Other plans may spend in the meantime, so that fewer rounds may be allowed than this says.

        Args:
            coming: The site's own part of the records that a plan still has to come, in order of their rounds.

        Returns:
            The round; None if the budget allows all of them.
        """
        with self._lock:
            forecast = self._accountant
        for record in coming:
            try:
                forecast.admit(record)
            except BudgetExhausted:
                return record.round
        return None

    def spent(self) -> PrivacySpent:
        """Tight upper bound on what the site has spent in all its plans together."""
        with self._lock:
            return self._accountant.spent()

    def _all_released(self) -> list[Record]:
        return [record for records in self._released.values() for record in records]

    def _make(self, announced: Sequence[Record]) -> Accountant:
        """Returns an accountant that has counted every release so far, and knows which ones were announced."""
        accountant = Accountant(1, self._delta, self._epsilon, announced)
        for record in self._all_released():
            accountant.count(record)  # it was released: to refuse it now would only hide it
        return accountant
