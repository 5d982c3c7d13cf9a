"""Counts the privacy cost of each epoch of random allocation once.

An epoch has one cost for all its releases (`allocation`), which is counted at the first of them. Later releases add no
cost, as long as their noise is at least the noise of the first release. An epoch that ends early, or in which some
rounds are missing, costs at most as much as a whole epoch (docs/design/0010-allocation.md), so it does not matter if
later releases are made.

One allocation covers one epoch, one release in each of its rounds, and one `attempt`. Several releases in a round, and
a run and its extension, have separate assignments and so separate costs. If records of several runs follow each other,
a repeated round number begins another epoch, with its own cost. Runs with alternating records must be accounted for
separately, or differ in `attempt`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting.events import FREE, Event, PrivacyCost, compute_cost, covers
from fedpriv.privacy.record_table import RecordTable

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_LAST_BITS = 1e-12  # by which the noise of two releases of an epoch may differ
_Key = tuple[int, int, int, int]


@dataclass
class _Epoch:
    """An epoch with a counted cost: the cost, and the rounds that were released."""

    cost: PrivacyCost
    rounds: set[int] = field(default_factory=set[int])


class EpochCharges:
    """The epochs of random allocation with a counted cost."""

    def __init__(self) -> None:
        self._charged: dict[_Key, _Epoch] = {}

    def copy(self) -> EpochCharges:
        """Returns a copy with the same counted epochs."""
        other = EpochCharges()
        for key, epoch in self._charged.items():
            other._charged[key] = _Epoch(epoch.cost, set(epoch.rounds))
        return other

    def due(self, record: Record, cost: PrivacyCost) -> PrivacyCost:
        """Returns the cost that a record adds to the costs so far.

        Args:
            record: The record.
            cost: The cost of the record alone, as `compute_cost` returns it. With random allocation it is the cost of
                the whole epoch.

        Returns:
            The cost; no cost if the record belongs to an epoch that was already counted.

        Raises:
            PrivacyError: If the record belongs to an epoch that was counted with more noise than the record has.
        """
        if record.batches is None:
            return cost
        charged = self._charged.get(_key(record, record.batches))
        if charged is None or record.round in charged.rounds:
            return cost
        if not _covers(charged.cost, cost):
            raise PrivacyError(
                f"round {record.round}, {record.query}: this query result has less noise than was assumed when its "
                f"epoch of random allocation, {record.batches} rounds, was charged. All rounds of an epoch need the "
                "same query with the same noise; use poisson batches for strategies with changing queries"
            )
        return PrivacyCost(None, (FREE,))

    def take(self, record: Record, cost: PrivacyCost) -> None:
        """Notes that the epoch of a record is counted; `cost` is the cost of the record alone."""
        if record.batches is None:
            return
        key = _key(record, record.batches)
        charged = self._charged.get(key)
        if charged is None or record.round in charged.rounds:
            charged = _Epoch(cost)
            self._charged[key] = charged
        charged.rounds.add(record.round)

    def charge(self, records: Iterable[Record], n_clients: int) -> list[PrivacyCost]:
        """Counts the epochs of several records, and returns the cost of each record; see `compute_costs`."""
        costs = list[PrivacyCost]()
        for record in records:
            cost = compute_cost(record, n_clients)
            costs.append(self.due(record, cost))
            self.take(record, cost)
        return costs


def compute_costs(records: Iterable[Record], n_clients: int, charged: EpochCharges | None = None) -> list[PrivacyCost]:
    """Returns the cost of each of several records. The cost of an epoch of random allocation is counted at its first
    record.

    Args:
        records: The records.
        n_clients: Number of clients.
        charged: The epochs that were counted before; none by default. This argument is not changed.

    Raises:
        ConfigError: See `compute_cost`.
        PrivacyError: If the noise of an epoch changes.
    """
    if charged is None:
        epochs = EpochCharges()
    else:
        epochs = charged.copy()
    return epochs.charge(records, n_clients)


def costs_by_kind(
    table: RecordTable, n_clients: int, start: int = 0, end: int | None = None
) -> Iterator[tuple[Record, PrivacyCost, int]]:
    """Counts the costs of a table in which all releases of a kind have the same cost, without creating a record for
    each release.

    Args:
        table: The table.
        n_clients: Number of clients.
        start: Position of the first record that counts.
        end: Position of the first record that no longer counts; None counts all.

    Yields:
        A kind, a cost, and the number of times that it occurs. If the table contains the clients of each record,
        clients that take part equally often have a common cost, so that each client's events are counted as in
        `compute_costs`.

    Raises:
        ConfigError: See `compute_cost`.
    """
    for number, count, participations in table.counts(start, len(table) if end is None else end):
        kind = table.kinds[number]
        cost = compute_cost(kind, n_clients)
        if participations is None:
            yield kind, cost, count
        elif not participations.any():
            yield kind, cost, count  # of nobody
        else:
            for times in np.unique(participations[participations > 0]).tolist():
                clients = tuple(np.flatnonzero(participations == times).tolist())
                yield kind, compute_cost(kind.changed(clients=clients), n_clients), times


class PlannedCosts:
    """The costs of a plan's releases, counted from any position in the plan to any later one.

    Args:
        records: The releases.
        n_clients: Number of clients.
        charged: The epochs of random allocation that were counted before.

    Raises:
        ConfigError, PrivacyError: See `compute_costs`.
    """

    def __init__(self, records: Sequence[Record], n_clients: int, charged: EpochCharges | None = None) -> None:
        self._n_clients = n_clients
        self._table: RecordTable | None = None
        self._costs: list[PrivacyCost] = []
        if isinstance(records, RecordTable) and records.is_priced_by_kind:
            self._table = records
        else:
            known = dict[PrivacyCost, PrivacyCost]()  # equal costs are one object
            self._costs = [known.setdefault(cost, cost) for cost in compute_costs(records, n_clients, charged)]

    def events(self) -> set[Event]:
        """Returns the distinct events of all releases."""
        costs = self._costs
        if self._table is not None:
            costs = [compute_cost(kind, self._n_clients) for kind in self._table.kinds]
        return {event for cost in costs for event in cost.events}

    def between(self, start: int, end: int) -> Counter[PrivacyCost]:
        """Returns the costs of the releases at positions `start` to `end - 1`, with the number of times each occurs."""
        if self._table is None:
            return Counter(self._costs[start:end])
        counts = Counter[PrivacyCost]()
        for _, cost, count in costs_by_kind(self._table, self._n_clients, start, end):
            counts[cost] += count
        return counts


def count_costs(records: Sequence[Record], n_clients: int) -> Counter[PrivacyCost]:
    """Returns the distinct costs of records, with the number of times that each occurs.

    Raises:
        ConfigError, PrivacyError: See `compute_costs`.
    """
    return PlannedCosts(records, n_clients).between(0, len(records))


def _key(record: Record, batches: int) -> _Key:
    return record.attempt, batches, record.round // batches, record.index


def _covers(charged: PrivacyCost, cost: PrivacyCost) -> bool:
    """True if each client's event costs at most its charge; both costs cover all clients."""
    if len(charged.events) == 1:
        return all(covers(charged.events[0], event, _LAST_BITS) for event in cost.events)
    if len(cost.events) == 1:
        return all(covers(event, cost.events[0], _LAST_BITS) for event in charged.events)
    pairs = zip(charged.events, cost.events, strict=True)
    return all(covers(first, later, _LAST_BITS) for first, later in pairs)
