"""Releases that are known to fit the budget, so that admitting them needs no computation.

If some releases together stay within the limit, so do releases that cost less.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.privacy.accounting.events import PrivacyCost
from fedpriv.privacy.accounting.events import covers as event_covers

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_SLACK = 1e-9  # a planned noise level and the one used may differ in their last bits
_MOST_AHEAD = 2**20
_MARKS, _FEWEST_MARKS, _LEVELS_AT_ALL_MARKS = 12, 3, 60

Fit = Callable[[Counter[PrivacyCost]], bool]
Key = tuple[int, str, int]


class PlannedReserve:
    """The releases of a plan that are still to come. Releasing anything else voids it.

    Args:
        plan: Records with their charges.
    """

    def __init__(self, plan: Iterable[tuple[Record, PrivacyCost]]) -> None:
        self._left: dict[Key, list[PrivacyCost]] = {}
        self._all: Counter[PrivacyCost] = Counter()
        by_round: dict[int, Counter[PrivacyCost]] = {}
        for record, charge in plan:
            self._left.setdefault(_key(record), []).append(charge)
            least = _noisier(charge)
            self._all[least] += 1
            by_round.setdefault(record.round, Counter())[least] += 1
        self.milestones = Milestones(by_round)
        self._holds = bool(self._all)
        self._known: bool | None = None

    @property
    def holds(self) -> bool:
        """Whether all releases so far belong to the plan."""
        return self._holds

    def covers(self, record: Record, charge: PrivacyCost) -> bool:
        """Whether all releases so far and this one belong to the plan."""
        return self._holds and any(covers(planned, charge, _SLACK) for planned in self._left.get(_key(record), ()))

    def fits(self, fit: Fit) -> bool:
        """Whether the whole plan fits; computed once."""
        if self._known is None:
            self._known = fit(self._all)
        return self._known

    def take(self, record: Record, charge: PrivacyCost) -> None:
        """Count a release against the plan; one that is not in it voids the plan."""
        if self._holds:
            left = self._left.get(_key(record), [])
        else:
            left = []
        match = next((planned for planned in left if covers(planned, charge, _SLACK)), None)
        self._holds = match is not None
        if match is not None:
            left.remove(match)


class Milestones:
    """Epsilon of a plan's first rounds, computed for a few numbers of rounds only, and only when asked.

    For the rounds between, the next larger one gives an upper bound. They are denser at the start, since epsilon grows
    about as the square root of the rounds; plans with many noise levels, whose bound is slow, have fewer.

    Args:
        by_round: The plan's releases in each round.
    """

    def __init__(self, by_round: dict[int, Counter[PrivacyCost]]) -> None:
        self._by_round, self._rounds = by_round, max(by_round, default=-1) + 1
        levels = {event for charges in by_round.values() for charge in charges for event in charge.events}
        count = max(_FEWEST_MARKS, min(_MARKS, _LEVELS_AT_ALL_MARKS // max(1, len(levels))))
        self._marks = sorted({math.ceil(self._rounds * (mark / count) ** 2) for mark in range(1, count + 1)})
        self._known: dict[int, float] = {}
        self._counted, self._so_far = 0, Counter[PrivacyCost]()

    def epsilon(self, rounds: int, bound: Callable[[Counter[PrivacyCost]], float]) -> float:
        """Upper bound on the epsilon of the first `rounds` rounds; `bound` gives the epsilon of counted releases."""
        mark = self._marks[bisect_left(self._marks, rounds)]
        if mark not in self._known:
            for index in range(self._counted, mark):
                self._so_far += self._by_round.get(index, Counter())
            self._counted = max(self._counted, mark)
            self._known[mark] = bound(self._so_far)
        return self._known[mark]


@dataclass
class _Ahead:
    charge: PrivacyCost
    left: int


class Foresight:
    """Caches one expensive check: how many more releases like the last few still fit."""

    def __init__(self) -> None:
        self._ahead: list[_Ahead] = []

    def covers(self, charge: PrivacyCost) -> bool:
        """Whether this release is known to fit."""
        return self._find(charge) is not None

    def take(self, charge: PrivacyCost) -> None:
        """Count a release; one that was not known to fit empties the cache."""
        found = self._find(charge)
        if found is None:
            self._ahead.clear()
        else:
            found.left -= 1

    def look(self, charge: PrivacyCost, recent: Iterable[PrivacyCost], fit: Fit) -> bool:
        """Find how many more releases fit.

        Args:
            charge: The next release.
            recent: Releases of the last rounds; the next rounds' are expected to be like them.
            fit: Whether everything released so far fits the limit together with these.

        Returns:
            Whether at least the next release fits.
        """
        expected = list(dict.fromkeys([charge, *recent]))
        times = _most(lambda k: fit(Counter(dict.fromkeys(expected, k))))
        if times == 0:
            expected, times = [charge], int(fit(Counter([charge])))
        self._ahead = [_Ahead(template, times) for template in expected if times]
        return times > 0

    def _find(self, charge: PrivacyCost) -> _Ahead | None:
        return next((ahead for ahead in self._ahead if ahead.left and covers(ahead.charge, charge)), None)


def covers(planned: PrivacyCost, charge: PrivacyCost, slack: float = 0.0) -> bool:
    """Whether a charge costs no client more than a planned one."""
    if planned.clients is not None and planned.clients != charge.clients:
        return False
    if len(planned.events) == 1:
        return all(event_covers(planned.events[0], event, slack) for event in charge.events)
    if len(charge.events) == 1:
        events = charge.events * len(planned.events)
    else:
        events = charge.events
    same = planned.clients == charge.clients and len(events) == len(planned.events)
    return same and all(event_covers(a, b, slack) for a, b in zip(planned.events, events, strict=True))


def _most(fits: Callable[[int], bool]) -> int:
    """Largest k that fits, to within an eighth: what is left over is looked for again."""
    low, high = 0, 1
    while high <= _MOST_AHEAD and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        if fits(middle):
            low, high = (middle, high)
        else:
            low, high = (low, middle)
    return low


def _noisier(charge: PrivacyCost) -> PrivacyCost:
    events = tuple(event._replace(noise=event.noise * (1 - _SLACK)) for event in charge.events)
    return PrivacyCost(charge.clients, events)


def _key(record: Record) -> Key:
    return record.round, record.query, record.index
