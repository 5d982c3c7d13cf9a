"""Composes all releases of a ledger. Epsilon is computed on request and not at each release."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.continuity import Continuity
from fedpriv.privacy.accounting.epochs import EpochCharges, PlannedCosts, costs_by_kind
from fedpriv.privacy.accounting.events import PrivacyCost, compute_cost, group_histories
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.record_table import RecordTable

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record, Relation, Unit


class Composition:
    """Collects the costs of releases, and composes them to an epsilon.

    Args:
        n_clients: Number of clients.

    Attributes:
        charges: Each distinct cost, and how often it occurred.
    """

    def __init__(self, n_clients: int) -> None:
        self._n_clients = n_clients
        self._continuity = Continuity()
        self._epochs = EpochCharges()
        self.charges: Counter[PrivacyCost] = Counter()
        # unit, relation and shared numbers, the same in all records
        self._protection: tuple[Unit, Relation, str] | None = None
        self._trust_names: dict[str, None] = {}
        self._reasons: dict[str, None] = {}

    def check(self, record: Record) -> PrivacyCost:
        """Returns the added cost of a record, without counting it.

        Raises:
            ConfigError: If the record is out of range, or no sound bound on its epsilon is known.
            PrivacyError: See `due`.
        """
        return self.due(record, compute_cost(record, self._n_clients))

    def due(self, record: Record, cost: PrivacyCost) -> PrivacyCost:
        """Returns the added cost of a record, given its cost alone.

        Raises:
            PrivacyError: If the record protects another unit or relation than the earlier records, or its noise is
                correlated with the noise of missing rounds, or the noise of an epoch of random allocation changes.
        """
        protection = (record.unit, record.relation, record.shared)
        if self._protection not in (None, protection):
            raise PrivacyError(
                f"round {record.round}, {record.query}: this ledger is for (unit, relation, shared) = "
                f"{self._protection}, but the record is for {protection}. Epsilons of different kinds cannot be "
                "added; use separate ledgers"
            )
        self._continuity.check(record)
        return self._epochs.due(record, cost)

    def count(self, records: Sequence[Record]) -> None:
        """Checks and counts records. The records of a plan are counted by kind if costs do not depend on rounds.

        Raises:
            ConfigError, PrivacyError: See `check`.
        """
        if isinstance(records, RecordTable) and records.is_priced_by_kind:
            for kind, cost, count in costs_by_kind(records, self._n_clients):
                self.take(kind, self.due(kind, cost), count)
        else:
            for record in records:
                self.take(record, self.check(record))

    def take(self, record: Record, charge: PrivacyCost, count: int = 1) -> None:
        """Counts a checked record, or several records that differ in their round only, with the cost `charge`."""
        self._continuity.take(record)
        self._epochs.take(record, charge)
        self._protection = (record.unit, record.relation, record.shared)
        self.charges[charge] += count
        self._trust_names[record.trust] = None
        if any(event.law == "none" for event in charge.events):
            self._reasons[record.non_private or "a query result without noise"] = None

    def costs_of(self, coming: Sequence[Record]) -> PlannedCosts:
        """Returns the added cost of each of several future records; they are not counted."""
        return PlannedCosts(coming, self._n_clients, self._epochs)

    def spent(self, delta: float) -> PrivacySpent:
        """Returns a tight upper bound on the cost of all records together, with the conditions under which it holds."""
        groups = [
            (bounds.compute_quick_epsilons(history, delta), clients, history)
            for clients, history in group_histories(self.charges, self._n_clients)
        ]
        priced = dict[int, tuple[float, str]]()
        # tight bounds are slow: only the histories that cost most by the quick bound get one
        by_quick_bound = sorted(groups, key=lambda group: -min(group[0].values()))
        for rank, (quick_bounds, clients, history) in enumerate(by_quick_bound):
            if rank < bounds.MOST_TIGHT:
                epsilons = bounds.compute_tight_epsilons(history, delta)
            else:
                epsilons = quick_bounds
            name = min(epsilons, key=lambda key: epsilons[key])
            priced |= dict.fromkeys(clients, (epsilons[name], name))
        per_client = tuple(priced[client][0] for client in range(self._n_clients))
        epsilon = max(per_client)
        if math.isinf(epsilon):
            winner = "none"
        else:
            winner = priced[per_client.index(epsilon)][1]
        unit, relation, shared = self._protection or ("sample", "replace_one", "")
        relation += f"({shared})" if shared else ""
        trust = "+".join(self._trust_names) or "local"
        return PrivacySpent(
            epsilon,
            delta,
            unit,
            relation,
            trust,
            winner,
            per_client,
            tuple(self._reasons),
        )
