"""Privacy filter of a site: admits releases that its plan announces, while the budget of all its plans allows them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedpriv.privacy import VOID, Record
from fedpriv.privacy.accounting import UnplannedRelease, compute_exposure
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_accountant import SiteAccountant
from fedpriv.sites.site_folder import SiteFolder


def single_site_record(record: Record, client: int, n_clients: int) -> Record:
    """Returns one client's share of a record, as in a ledger of that client alone, at the same privacy cost.

    Args:
        record: A record of several clients.
        client: Number of the client.
        n_clients: Number of all clients of the plan.

    Raises:
        UnplannedRelease: If the client is not among the replying clients.
    """
    if record.clients is None:
        clients = range(n_clients)
    else:
        clients = record.clients
    if client not in clients:
        raise UnplannedRelease(
            f"round {record.round}: this site does not take part in this round, so it releases nothing"
        )
    position = clients.index(client)
    scalars = {}
    for name in ("noise_multiplier", "rate"):
        value = getattr(record, name)
        if isinstance(value, tuple):
            scalars[name] = value[position]
        else:
            scalars[name] = value
    if record.pairs is not None:
        # colluders know the noise of some pairs, so this client is protected by less noise than the sum contains
        scalars["noise_multiplier"] /= math.sqrt(compute_exposure(record.pairs, record.clients, n_clients))
    return replace(record, clients=None, pairs=None, **scalars)


class SitePlanFilter:
    """Admits a record if the plan announces it and the site's budget, which all its plans share, allows it.

    Guarantee: for any requests in this federation and in others, earlier or at the same time, the site's releases stay
    within its budget. Epsilon is the site's own: it does not depend on which other sites reply, or on the data of
    others.

    Args:
        resolved_plan: The plan.
        number: The site's number in it.
        accountant: Counts the releases of all plans of the site.
        on_record: The records of this plan's ledger that `accountant` has already counted, when a ledger is reopened.
            `count` accepts each of them once, in this order, without counting it twice.
    """

    def __init__(
        self, resolved_plan: ResolvedPlan, number: int, accountant: SiteAccountant, on_record: Sequence[Record] = ()
    ) -> None:
        self._plan = resolved_plan.hash
        self._number = number
        self._n_sites = len(resolved_plan.cards)
        self._accountant = accountant
        self._on_record = deque(on_record)
        self._left_out = frozenset[int]()
        self.planned = planned_records(resolved_plan, number)

    def leave_out(self, rounds: frozenset[int]) -> None:
        """Drops the releases of rounds with a signed absence notice; later rounds may use their budget."""
        self._left_out = rounds

    def admit(self, record: Record) -> None:
        """See `fedpriv.privacy.ledger.PrivacyFilter`.

        Raises:
            BudgetExhausted: If the release would exceed the site's budget.
            UnplannedRelease: If the plan has another record, or none.
        """
        site_record = single_site_record(record, self._number, self._n_sites)
        self._accountant.admit(self._plan, site_record, left_out=self._left_out)

    def count(self, record: Record) -> None:
        """See `fedpriv.privacy.ledger.PrivacyFilter`; the accountant has already counted these records.

        Raises:
            UnplannedRelease: If the ledger is not the one that was counted.
        """
        if record.query == VOID and not self._on_record:
            self._accountant.count_void(self._plan, single_site_record(record, self._number, self._n_sites))
            return
        if not self._on_record or record != self._on_record[0]:
            raise UnplannedRelease(
                f"round {record.round}, {record.query}: the site's ledger was changed while the site was running; "
                "restore it"
            )
        self._on_record.popleft()

    def first_refused(self, rounds: Collection[int]) -> int | None:
        """Returns the first of these rounds that the budget does not allow if the rounds before it are released."""
        coming = [record for record in self.planned if record.round in rounds]
        return self._accountant.first_refused(coming)


def planned_records(resolved_plan: ResolvedPlan, number: int) -> list[Record]:
    """Returns one site's share of a plan's records, in order of their rounds."""
    n_sites = len(resolved_plan.cards)
    shared = [record for record in resolved_plan.plan.records if record.clients is None or number in record.clients]
    return sorted((single_site_record(record, number, n_sites) for record in shared), key=lambda record: record.round)


def make_accountant(folder: SiteFolder) -> SiteAccountant:
    """Returns the accountant of a site, with all records of its ledgers in all plans that it has accepted.

    Raises:
        LedgerError: If a plan or its ledger is missing, or the ledger is damaged or altered.
    """
    on_record: dict[str, Sequence[Record]] = {}
    for proposal in folder.accepted:
        number = folder.number_in(proposal)
        n_sites = len(proposal.cards)
        on_record[proposal.hash] = [single_site_record(record, number, n_sites) for record in folder.released(proposal)]
    budget = folder.settings.budget
    return SiteAccountant(budget.epsilon, budget.delta, on_record)
