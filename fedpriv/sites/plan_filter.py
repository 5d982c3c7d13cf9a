"""What a site lets out: answers that one of its plans has announced, while the budget of all its plans allows them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedpriv.errors import PrivacyError
from fedpriv.privacy.accounting.pairwise import exposure
from fedpriv.privacy.record import Record
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_accountant import SiteAccountant

_SLACK = 1e-9  # of numbers that are computed in another order


class UnplannedRelease(PrivacyError):
    """An answer that the plan did not announce."""


def of_one(record: Record, client: int, n_clients: int) -> Record:
    """One client's part of a record, as a ledger of that client alone would have it; at the same price.

    Raises:
        NotAsPlanned: the client is not among those who answer.
    """
    if record.clients is None:
        clients = range(n_clients)
    else:
        clients = record.clients
    if client not in clients:
        raise UnplannedRelease(f"round {record.round}: this site takes no part in it")
    place = clients.index(client)
    own = {}
    for name in ("noise_multiplier", "rate"):
        value = getattr(record, name)
        if isinstance(value, tuple):
            own[name] = value[place]
        else:
            own[name] = value
    if record.pairs is not None:
        own["noise_multiplier"] /= math.sqrt(exposure(record.pairs, record.clients, n_clients))
    return replace(record, clients=None, pairs=None, **own)


class PlanFilter:
    """Admits a record if the plan has it and if the site's budget, which all its plans share, allows it.

    Guarantee: whatever is asked, in this federation and in any other, before it or beside it, what the site releases is
    within its budget. Epsilon is the site's own: it does not depend on who else answers, or on what others keep.

    Args:
        terms: The plan.
        number: The site's number in it.
        accountant: Counts the releases of all plans of the site.
        on_record: The records of this plan's ledger that `accountant` has counted already: those of a ledger that is
            opened again. They are admitted once, in this order, without being counted twice.
    """

    def __init__(
        self, terms: ResolvedPlan, number: int, accountant: SiteAccountant, on_record: Sequence[Record] = ()
    ) -> None:
        self._plan = terms.hash
        self._number = number
        self._n_sites = len(terms.cards)
        self._accountant = accountant
        self._on_record = deque(on_record)
        self.planned = planned_of(terms, number)
        self._by_place = {(record.round, record.index): record for record in self.planned}

    def admit(self, record: Record) -> None:
        """See `fedpriv.privacy.ledger.PrivacyFilter`.

        Raises:
            BudgetExhausted: it would pass the site's budget.
            NotAsPlanned: the plan has another record, or none.
        """
        if self._on_record:
            if record != self._on_record[0]:
                raise UnplannedRelease(
                    f"round {record.round}, {record.query}: its ledger was changed while the site ran"
                )
            self._on_record.popleft()
            return
        own = of_one(record, self._number, self._n_sites)
        planned = self._by_place.get((record.round, record.index))
        if planned is None or not _covered(own, planned):
            raise UnplannedRelease(f"round {record.round}, {record.query}: the plan has no such answer at this price")
        self._accountant.admit(self._plan, own)

    def first_refused(self, rounds: Collection[int]) -> int | None:
        """Returns the first of these rounds that the budget does not allow if those before it are answered."""
        coming = [record for record in self.planned if record.round in rounds]
        return self._accountant.first_refused(coming)


def planned_of(terms: ResolvedPlan, number: int) -> list[Record]:
    """Returns one site's own part of a plan's records, in order of their rounds."""
    n_sites = len(terms.cards)
    shared = [record for record in terms.plan.records if record.clients is None or number in record.clients]
    return sorted((of_one(record, number, n_sites) for record in shared), key=lambda record: record.round)


def _covered(own: Record, planned: Record) -> bool:
    """Whether an answer is the planned one: at most its bound and its rate, at least its noise, all else the same."""
    numbers = {"bound": 0.0, "noise_multiplier": 0.0, "rate": 0.0, "digest": None, "attempt": 0}
    assert isinstance(own.noise_multiplier, float) and isinstance(planned.noise_multiplier, float)
    assert isinstance(own.rate, float | int) and isinstance(planned.rate, float | int)
    return (
        replace(own, **numbers) == replace(planned, **numbers)
        and own.bound <= planned.bound * (1 + _SLACK)
        and own.noise_multiplier >= planned.noise_multiplier * (1 - _SLACK)
        and own.rate <= planned.rate * (1 + _SLACK)
    )
