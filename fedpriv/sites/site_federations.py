"""Past and planned releases of a site in each of its federations, from the files of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.errors import LedgerError
from fedpriv.privacy import LedgerFile, Record, RunCost
from fedpriv.privacy.accounting import Accountant, count_within_limit
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.plan_filter import single_site_record
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_keys import known_public_keys
from fedpriv.sites.site_records import NOTICES, read_notices, read_plan_ledger
from fedpriv.sites.site_settings import SiteBudget
from fedpriv.storage import files


@dataclass(frozen=True)
class SiteFederation:
    """One federation that the site has joined.

    Attributes:
        proposal: The plan.
        card: The site's card in the plan; its present card may differ.
        ledger: The site's ledger.
        plan: Path of the plan's file.
        done: The cost of the site's releases so far.
        whole: The cost of all its releases in the plan.
        colluders: The number of colluders that the plan's pair noise allows for; None without pair noise.
        notices: The site's absence notices.
    """

    proposal: FederationPlan
    card: SiteDescriptor
    ledger: LedgerFile
    plan: Path
    done: RunCost
    whole: RunCost
    colluders: int | None
    notices: Sequence[AbsenceNotice]


def read_federation(path: Path, card: SiteDescriptor) -> SiteFederation:
    """Reads a federation of the site with this card, or with earlier keys, from the files in the plan's folder.

    Raises:
        FedprivError: If a file is missing, damaged or altered.
    """
    proposal = FederationPlan.read(files.read(path).decode())
    public_keys = {card.public_key, *known_public_keys(path.parents[2])}
    numbers = [number for number, each in enumerate(proposal.cards) if each.public_key in public_keys]
    if not numbers:
        raise LedgerError(
            f"{path} contains no key of this site, so the privacy cost of this plan is unknown: restore the site's "
            "folder"
        )
    number = numbers[0]
    n_sites = len(proposal.cards)

    def cost(records: Sequence[Record]) -> RunCost:
        return RunCost(proposal.document.run, [single_site_record(record, number, n_sites) for record in records], 1)

    ledger = read_plan_ledger(path)
    all_planned = ResolvedPlan.of(proposal).plan.records
    planned = [record for record in all_planned if record.clients is None or number in record.clients]
    return SiteFederation(
        proposal=proposal,
        card=proposal.cards[number],
        ledger=ledger,
        plan=path,
        done=cost(ledger.records),
        whole=cost(planned),
        colluders=min((record.pairs.colluders for record in planned if record.pairs is not None), default=None),
        notices=read_notices(path.with_name(NOTICES)),
    )


def compute_charge(federations: Sequence[SiteFederation], budget: SiteBudget) -> list[RunCost]:
    """Returns the cost that a site is charged for each of its federations: the whole plan once it has begun.

    A party that ended a federation early, or omitted the site from a round, may have used the site's replies for this
    decision; the cost of only the sent replies would then be too small. Replies that the site's budget does not allow
    are never sent.

    Args:
        federations: All federations of the site.
        budget: Its budget, which was not lowered because of observed replies.
    """
    accountant = Accountant(1, budget.delta)
    for federation in federations:
        for record in federation.done.records:
            accountant.count(record)
    costs = list[RunCost]()
    for federation in federations:
        done = federation.done
        given = {(record.round, record.query, record.index) for record in done.records}
        missing = [
            replace(record, attempt=done.records[-1].attempt)
            for record in federation.whole.records
            if given and (record.round, record.query, record.index) not in given
        ]
        missing = sorted(missing, key=lambda record: record.round)
        missing = missing[: count_within_limit(accountant, missing, budget.epsilon)]
        for record in missing:
            accountant.count(record)
        costs.append(replace(done, records=[*done.records, *missing]))
    return costs
