"""What a site lets out: answers that its plan has announced, as long as its own budget allows them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from fedpriv.errors import BudgetExhausted, PrivacyError
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.pairwise import exposure
from fedpriv.privacy.record import Record
from fedpriv.sites.terms import Terms

_SLACK = 1e-9  # of numbers that are computed in another order


class NotAsPlanned(PrivacyError):
    """An answer that the plan did not announce."""


def of_one(record: Record, client: int, n_clients: int) -> Record:
    """One client's part of a record, as a ledger of that client alone would have it; at the same price.

    Raises:
        NotAsPlanned: the client is not among those who answer.
    """
    clients = range(n_clients) if record.clients is None else record.clients
    if client not in clients:
        raise NotAsPlanned(f"round {record.round}: this site takes no part in it")
    place = clients.index(client)
    own = {}
    for name in ("noise_multiplier", "rate"):
        value = getattr(record, name)
        own[name] = value[place] if isinstance(value, tuple) else value
    if record.pairs is not None:
        own["noise_multiplier"] /= math.sqrt(exposure(record.pairs, record.clients, n_clients))
    return replace(record, clients=None, pairs=None, **own)


class SiteGuard:
    """Admits a record if the plan has it, and if all that the site has told so far stays within its budget.

    Guarantee: whatever is asked, in this federation and in earlier ones, what the site has released is within its
    budget. Epsilon is the site's own: it does not depend on who else answers, or on what others keep.

    Args:
        terms: The plan.
        number: The site's.
        epsilon: Most that the site may spend, over all federations.
        delta: Of that budget.
        before: Records of the site's earlier federations, each its own part (`of_one`).

    Raises:
        BudgetExhausted: earlier federations have spent more.
        PrivacyError: they protect another unit or relation than this one.
    """

    def __init__(self, terms: Terms, number: int, epsilon: float, delta: float, before: Iterable[Record]) -> None:
        self._number, self._n_sites = number, len(terms.cards)
        mine = [r for r in terms.plan.records if r.clients is None or number in r.clients]
        planned = [of_one(record, number, self._n_sites) for record in mine]
        self._planned = {(record.round, record.index): record for record in planned}
        told = [*before]
        self.accountant = Accountant(1, delta, epsilon, [*told, *planned])
        for record in told:
            self.accountant.admit(record)

    def admit(self, record: Record) -> None:
        """See `fedpriv.privacy.ledger.Guard`.

        Raises:
            BudgetExhausted: it would pass the site's budget.
            NotAsPlanned: the plan has another record, or none.
        """
        own = of_one(record, self._number, self._n_sites)
        planned = self._planned.get((record.round, record.index))
        if planned is None or not _covered(own, planned):
            raise NotAsPlanned(f"round {record.round}, {record.query}: the plan has no such answer at this price")
        self.accountant.admit(own)

    def first_refused(self, after: int) -> int | None:
        """The first round past `after` that the budget does not allow if all before it are answered; None if none.

        It counts them: the guard admits nothing afterwards.
        """
        for (index, _), record in sorted(self._planned.items(), key=lambda item: item[0]):
            try:
                if index > after:
                    self.accountant.admit(record)
            except BudgetExhausted:
                return index
        return None


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
