"""Bounds the epsilon of the first rounds of a plan, for reports. Bounds are computed for a few rounds only."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.epochs import EpochCharges, PlannedCosts
from fedpriv.privacy.accounting.events import group_histories
from fedpriv.privacy.record_table import RecordTable

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_MARKS, _FEWEST_MARKS, _LEVELS_AT_ALL_MARKS = 12, 3, 60


class Milestones:
    """Epsilon of a plan's first rounds, computed for a few numbers of rounds only, and only on request.

    A number of rounds with a computed bound is called a mark. For a round between two marks, the bound of the next mark
    is an upper bound. Marks are denser at the start, because epsilon grows about as the square root of the number of
    rounds. Plans with many noise levels, for which bounds are slow, have fewer marks. The bound of the whole plan,
    which is also in the run's result, is tight. The other bounds are a few per cent larger than tight ones, which is
    little compared with the distance between two marks.

    Args:
        plan: The planned releases, in order of their rounds.
        n_clients: Number of clients.
        delta: Failure probability in [0, 1).
        released: Earlier recorded releases in addition to the plan. They count in every bound.

    Attributes:
        marks: The numbers of rounds with a separate bound, ascending.
    """

    def __init__(self, plan: Sequence[Record], n_clients: int, delta: float, released: Sequence[Record] = ()) -> None:
        self._n_clients, self._delta = n_clients, delta
        # an epoch of random allocation that is in progress was charged by its first release
        charged = EpochCharges()
        self._counted_costs = Counter(charged.charge(released, n_clients))
        table = RecordTable.of(plan)
        self._costs = PlannedCosts(table, n_clients, charged)
        self._plan_rounds = table.rounds
        self._rounds = max((*self._plan_rounds[-1:], *(record.round for record in released)), default=-1) + 1
        levels = {event for cost in self._counted_costs for event in cost.events} | self._costs.events()
        count = max(_FEWEST_MARKS, min(_MARKS, _LEVELS_AT_ALL_MARKS // max(1, len(levels))))
        self.marks = sorted({math.ceil(self._rounds * (mark / count) ** 2) for mark in range(1, count + 1)})
        self._epsilons = dict[int, float]()
        self._n_counted = 0  # releases of the plan that are in `_counted_costs`

    def epsilon(self, rounds: int) -> float:
        """Returns an upper bound on the joint epsilon of the first `rounds` rounds and all earlier releases."""
        mark = self.marks[bisect_left(self.marks, rounds)]
        if mark not in self._epsilons:
            end = bisect_left(self._plan_rounds, mark)
            self._counted_costs.update(self._costs.between(self._n_counted, end))
            self._n_counted = max(self._n_counted, end)
            groups = group_histories(self._counted_costs, self._n_clients)
            is_rough = mark < self._rounds
            self._epsilons[mark] = bounds.compute_largest_epsilon(
                [history for _, history in groups], self._delta, rough=is_rough
            )
        return self._epsilons[mark]
