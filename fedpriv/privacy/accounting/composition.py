"""All releases of a ledger, and their price: nothing is priced before it is asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting import bounds
from fedpriv.privacy.accounting.continuity import Continuity
from fedpriv.privacy.accounting.epochs import EpochCharges, costs_of
from fedpriv.privacy.accounting.events import PrivacyCost, cost_of, histories
from fedpriv.privacy.accounting.spent import PrivacySpent

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record, Relation, Unit


class Composition:
    """What clients have to pay for.

    Args:
        n_clients: Number of clients.

    Attributes:
        charges: What was released, and how often.
    """

    def __init__(self, n_clients: int) -> None:
        self._n_clients, self._continuity, self._epochs = n_clients, Continuity(), EpochCharges()
        self.charges: Counter[PrivacyCost] = Counter()
        self._facts: tuple[Unit, Relation, str] | None = None
        self._trusts: dict[str, None] = {}
        self._reasons: dict[str, None] = {}

    def check(self, record: Record) -> PrivacyCost:
        """What a record adds to the costs, before it is counted.

        Raises:
            ConfigError: the record is out of range, or no sound bound on its epsilon is known.
            PrivacyError: the record protects another unit or relation than the ones before it, or its noise is
                correlated with that of rounds that are missing, or the noise of an epoch of random allocation changes.
        """
        facts = (record.unit, record.relation, record.shared)
        if self._facts not in (None, facts):
            raise PrivacyError(
                f"round {record.round}, {record.query}: this ledger protects (unit, relation, shared) = "
                f"{self._facts}, the record {facts}. Epsilons of different kinds do not add up; account them in "
                "separate ledgers"
            )
        self._continuity.check(record)
        return self._epochs.due(record, cost_of(record, self._n_clients))

    def take(self, record: Record, charge: PrivacyCost) -> None:
        """Count a record that was checked."""
        self._continuity.take(record)
        self._epochs.take(record, charge)
        self._facts = (record.unit, record.relation, record.shared)
        self.charges[charge] += 1
        self._trusts[record.trust] = None
        if any(event.law == "none" for event in charge.events):
            self._reasons[record.non_private or "an answer without noise"] = None

    def costs_of(self, coming: Iterable[Record]) -> list[PrivacyCost]:
        """What each of several coming records would add, which are not counted."""
        return costs_of(coming, self._n_clients, self._epochs)

    def spent(self, delta: float) -> PrivacySpent:
        """Tight upper bound on what all records cost together, with the conditions under which it holds."""
        groups = [(bounds.quick(found, delta), who, found) for who, found in histories(self.charges, self._n_clients)]
        priced = dict[int, tuple[float, str]]()
        for rank, (found, members, history) in enumerate(sorted(groups, key=lambda group: -min(group[0].values()))):
            if rank < bounds.MOST_TIGHT:
                known = bounds.tight(history, delta)
            else:
                known = found
            name = min(known, key=lambda key: known[key])
            priced |= dict.fromkeys(members, (known[name], name))
        per_client = tuple(priced[client][0] for client in range(self._n_clients))
        epsilon = max(per_client)
        if math.isinf(epsilon):
            winner = "none"
        else:
            winner = priced[per_client.index(epsilon)][1]
        unit, relation, shared = self._facts or ("sample", "replace_one", "")
        relation += f"({shared})" if shared else ""
        trust = "+".join(self._trusts) or "local"
        return PrivacySpent(epsilon, delta, unit, relation, trust, winner, per_client, tuple(self._reasons))
