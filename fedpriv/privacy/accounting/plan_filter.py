"""The privacy filter of a plan: each planned release may be made once, and no other release is allowed.

A run lists its releases before it reads any data (`fedpriv.planning.plan`). This list alone determines the allowed
releases; the course of the run does not matter. Each planned release is a slot, which one release with at most the same
cost may use. If there is a limit on epsilon, it determines before the first release how many slots of the plan can be
used.

docs/design/0011-plan-filter.md explains why this bounds epsilon for any strategy: the slots are fixed
before any release exists, so all releases together are an adaptive composition of fixed mechanisms, some of which are
left out. The dominating pairs of such a composition compose (Zhu, Dong, Wang 2022).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fedpriv.errors import BudgetExhausted, PrivacyError
from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.accountant import Accountant, check_target
from fedpriv.privacy.accounting.events import PrivacyCost, compute_cost, group_histories
from fedpriv.privacy.accounting.events import covers as event_covers
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.record_table import RecordTable

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_COMPARED_OTHERWISE = frozenset({"bound", "noise_multiplier", "rate", "attempt", "clients", "pairs"})
"""Fields of a record that `covers` and `_is_planned` compare separately, or that may differ."""
SLACK = 1e-12  # two machines that price a plan may differ in the last bits, as sums of costs do


class UnplannedRelease(PrivacyError):
    """Raised if the plan does not contain this release, or if the release was already made."""


class PlanFilter:
    """Admits the releases of a plan, each once and with at most its planned cost, as far as a limit on epsilon allows
    them.

    Guarantee: the joint epsilon of the admitted releases and those that `accountant` had counted before is at most
    `limit`. This holds for any order in which slots are used, for any set of unused slots, and even if the use of slots
    depends on earlier releases.

    Args:
        plan: The planned releases, in the order of their rounds. They must not depend on the data.
        accountant: Counts the releases. It may also count releases of other callers, which then use a part of the same
            limit.
        limit: Largest epsilon of any client, at the accountant's delta; None for no limit.
        attempt: Label of the plan's releases. Recorded releases with another label, which belong to a run that this run
            extends, are counted in addition to the plan.
        fits: True if the whole plan is known to be within the limit when no other release is counted, because the
            noise was computed from that limit.

    Attributes:
        accountant: See above.
        is_exhausted: True if a release was rejected because of the limit.

    Raises:
        ConfigError: If the limit is out of range.
    """

    def __init__(
        self,
        plan: Sequence[Record],
        accountant: Accountant,
        limit: float | None = None,
        *,
        attempt: int = 0,
        fits: bool = False,
    ) -> None:
        check_target(accountant.n_clients, accountant.delta, 1.0 if limit is None else limit)
        self.accountant = accountant
        self.is_exhausted = False
        self._limit = limit
        self._attempt = attempt
        self._fits = fits and accountant.n_records == 0
        self._plan = RecordTable.of(plan)
        # the cost of a release of each kind alone; with random allocation the cost of its whole epoch
        self._costs = [_cost_of_kind(kind, accountant.n_clients) for kind in self._plan.kinds]
        self._is_unused = bytearray(b"\1") * len(self._plan)
        self._allowed: range | None = None  # positions of the slots that the limit allows
        self._n_counted = -1  # records that had been counted when that was computed, and since then by this filter

    def admit(self, record: Record) -> None:
        """Counts a release that is about to be made.

        Raises:
            UnplannedRelease: If the plan does not contain the release, contains it at a lower cost, or has no unused
                slot for it.
            BudgetExhausted: If the limit does not allow the plan up to this release.
            ConfigError: If the record is out of range, or no sound bound on its epsilon is known.
            PrivacyError: If the record protects another unit or relation than the earlier records, or its noise is
                correlated with the noise of missing rounds.
        """
        slot = self._find_slot(record)
        if slot is None:
            raise UnplannedRelease(
                f"round {record.round}, {record.query}: the plan has no such query with this privacy cost, or this "
                "query was released already, so nothing was released. A strategy's queries must not depend on query "
                "results"
            )
        position, cost_alone = slot
        cost = self.accountant.due(record, cost_alone)
        # releases that others have counted since use the same limit
        if self._allowed is None or self._n_counted != self.accountant.n_records:
            self._allowed = self._allowed_from(record.round)
        if position not in self._allowed:
            self.is_exhausted = True
            raise self._refusal(record, cost)
        self.accountant.take(record, cost)
        self._n_counted = self.accountant.n_records
        self._is_unused[position] = 0

    def count(self, record: Record) -> None:
        """Counts a recorded release that was made before, even if it exceeds the limit.

        Raises:
            ConfigError, PrivacyError: See `admit`.
        """
        self.accountant.count(record)
        self.mark(record)

    def mark(self, record: Record) -> None:
        """Marks the slot of a release as used, after the accountant has counted the release. Does nothing if the
        release has no slot.
        """
        if record.attempt == self._attempt:
            slot = self._find_slot(record)
            if slot is not None:
                self._is_unused[slot[0]] = 0

    def leave_out(self, rounds: Collection[int]) -> None:
        """Gives up the slots of some rounds, so that the limit may allow more slots of later rounds.

        The choice of rounds must not depend on releases.
        """
        for round_index in rounds:
            for position in self._unused_of(round_index):
                self._is_unused[position] = 0
                self._allowed = None

    def _unused_of(self, round_index: int) -> list[int]:
        """Returns the positions of a round's unused slots."""
        return [position for position in self._plan.positions(round_index) if self._is_unused[position]]

    def _find_slot(self, record: Record) -> tuple[int, PrivacyCost] | None:
        """Returns the position of the first unused slot that a release may use, and the cost of this release alone."""
        n_clients = self.accountant.n_clients
        for position in self._unused_of(record.round):
            number = self._plan.numbers[position]
            kind = self._plan.kinds[number]
            if (kind.query, kind.index) != (record.query, record.index):
                continue
            if _is_of_kind(record, kind) and record.clients == self._plan.clients(position):
                return position, self._cost_of_kind(number, record)
            # costs from elsewhere: from another machine, or from a site for the sites that answer
            planned = self._plan[position]
            cost = compute_cost(record, n_clients)
            if _is_planned(record, planned) and covers(compute_cost(planned, n_clients), cost, SLACK):
                return position, cost
        return None

    def _cost_of_kind(self, number: int, record: Record) -> PrivacyCost:
        """Returns the cost of a release of a kind alone."""
        cost = self._costs[number]
        if cost is None:
            return compute_cost(record, self.accountant.n_clients)
        if self._plan.kinds[number].clients == ():
            return PrivacyCost(record.clients, cost.events)
        return cost

    def _allowed_from(self, first_round: int) -> range:
        """Returns the positions of the slots that the limit allows in a round and later rounds; earlier rounds are
        over.
        """
        start = bisect_left(self._plan.rounds, first_round)
        first = self._is_unused.find(1, start)
        if first == -1:
            return range(0)
        last = self._is_unused.rfind(1)
        whole_plan = self.accountant.n_records == 0
        if self._limit is None or (self._fits and whole_plan):
            return range(first, last + 1)
        coming: Sequence[int] = range(first, last + 1)
        if self._is_unused.count(0, first, last):
            coming = [position for position in coming if self._is_unused[position]]
        n_allowed = count_within_limit(self.accountant, self._plan.at(coming), self._limit)
        if n_allowed == 0:
            return range(0)
        return range(first, coming[n_allowed - 1] + 1)

    def _refusal(self, record: Record, cost: PrivacyCost) -> BudgetExhausted:
        """Returns the error for a release that the limit does not allow."""
        epsilon = _largest(self.accountant, Counter({cost: 1}))
        if math.isinf(epsilon):
            consequence = "infinite"
        else:
            consequence = f"{round_up(epsilon)} by the tightest known bound"
        return BudgetExhausted(
            f"round {record.round}, {record.query}: the privacy cost must not exceed epsilon={self._limit} at "
            f"delta={self.accountant.delta}, but this query result would raise it to {consequence}, so it was not "
            "released. Keep the result so far, or plan a new run with fewer rounds, a larger noise multiplier or a "
            "larger epsilon"
        )


def count_within_limit(accountant: Accountant, coming: Sequence[Record], limit: float) -> int:
    """Returns the number of coming releases, counted from the first, that stay within a limit together with the counted
    releases.

    All releases are tested first. If they exceed the limit, the number is found by bisection. Quick bounds are used
    where they are sufficient, and tight bounds elsewhere.

    Args:
        accountant: Has counted the releases so far.
        coming: The coming releases, in order.
        limit: Largest epsilon of a client.
    """
    costs = accountant.costs_of(coming)

    def is_too_much(extra: Counter[PrivacyCost]) -> bool:
        return _largest(accountant, extra, limit) > limit

    if not is_too_much(costs.between(0, len(coming))):
        return len(coming)
    # by halving: the first `fit` releases are within the limit, the first `too_many` are not
    fit, too_many = 0, len(coming)
    counted = Counter[PrivacyCost]()
    while too_many - fit > 1:
        middle = (fit + too_many + 1) // 2
        extra = counted + costs.between(fit, middle)
        if is_too_much(extra):
            too_many = middle
        else:
            fit, counted = middle, extra
    return fit


def covers(planned: PrivacyCost, cost: PrivacyCost, slack: float = 0.0) -> bool:
    """True if a release costs no client more than a planned release."""
    if planned.clients is not None and planned.clients != cost.clients:
        return False
    if len(planned.events) == 1:
        return all(event_covers(planned.events[0], event, slack) for event in cost.events)
    if len(cost.events) == 1:
        events = cost.events * len(planned.events)
    else:
        events = cost.events
    same = planned.clients == cost.clients and len(events) == len(planned.events)
    return same and all(event_covers(a, b, slack) for a, b in zip(planned.events, events, strict=True))


def _largest(accountant: Accountant, extra: Counter[PrivacyCost], enough: float = 0.0) -> float:
    """Returns the largest epsilon of a client after further releases. If it is at most `enough`, any number up to
    `enough` may be returned.
    """
    groups = group_histories(accountant.charges + extra, accountant.n_clients)
    return bounds.compute_largest_epsilon([history for _, history in groups], accountant.delta, enough)


def _cost_of_kind(kind: Record, n_clients: int) -> PrivacyCost | None:
    """Returns the cost of a single release of a kind; None if the cost depends on the round."""
    if kind.time is not None:
        return None
    return compute_cost(kind, n_clients)


def _is_of_kind(record: Record, kind: Record) -> bool:
    """True if a release is of a planned kind, regardless of its clients. Its clip bound may be smaller, at the same
    cost.
    """
    planned = vars(kind)
    varying = {name: planned[name] for name in ("round", "attempt", "bound", "clients")}
    return {**vars(record), **varying} == planned and record.bound <= kind.bound


def _is_planned(record: Record, planned: Record) -> bool:
    """True if a release is of the planned kind, with at most the planned clip bound. `covers` compares its cost."""
    fields, planned_fields = vars(record), vars(planned)
    for name in planned_fields.keys() - _COMPARED_OTHERWISE:
        if fields[name] != planned_fields[name]:
            return False
    return record.bound <= planned.bound * (1 + SLACK)
