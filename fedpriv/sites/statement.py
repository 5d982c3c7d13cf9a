"""The privacy statement of a site: the releases of one organisation in all federations, from its own ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.errors import FedprivError
from fedpriv.privacy import MESSAGES, MODEL, SERVER, Cell, LedgerFile, RunCost, compose, compute_bound_matrix
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.reports import wording
from fedpriv.reports.accounts import Price
from fedpriv.reports.statement import Rows, Statement, Table, count_without_fedpriv, make_unbounded_cell
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.site_federations import SiteFederation, compute_charge, read_federation
from fedpriv.sites.site_folder import CARD, SECRETS
from fedpriv.sites.site_records import list_plan_files
from fedpriv.sites.site_settings import SETTINGS, SiteBudget, SiteSettings
from fedpriv.storage import files, is_destroyed, is_encrypted

_LEARNED = (
    "Others also learn that this site takes part, its card (name, public number of records, public key), and "
    "when it replies."
)
_OWN_NOISE = (
    "The site drew its own noise, from random bits that existed only in the memory of its process and were lost "
    "when it ended."
)
_KEEP_FOLDER = (
    "The site's folder contains its keys: anyone who has read it can subtract the noise that the site shares "
    "with others, and sign in its name. Protect it like the data."
)
_KEEP_KEY = (
    "The site's folder contains its keys encrypted; anyone with the folder and the means to decrypt them can "
    "subtract the noise that the site shares with others. Keep the two apart, and protect the folder like the "
    "data: it may contain the site's state."
)
_SEALED = (
    "The site's keys were destroyed: the noise that it shared with others cannot be computed from its folder. "
    "Earlier copies of the folder may still contain the keys."
)
_ROLLBACK = (
    "The site's folder was never restored from an older copy. With each reply, the site signs a counter of its "
    "records; the sender of the next question returns this counter, and a site that receives a counter larger "
    "than its ledger supports stops, and has no statement. This check detects nothing if the senders hide the "
    "counter, lost the reply, or were restored from an older copy as well."
)
_RELEASES = (
    "Noise was added to every query result, and the release was recorded in the ledger, before the site's message "
    "was computed from it; nothing else left the site."
)
_COMPOSITION = (
    "Federations compose as one if joining later ones did not depend on results of earlier ones. The amount "
    "spent so far (as printed by `fedpriv site status`) holds if results did not decide how many there were. "
    "The sentence at the top, and parts 1 and 2, do not need that: they include each begun plan in full."
)
_HEADING = ("federation", "with", "when (UTC, from file times)", "query results and their noise")


def is_site(folder: Path) -> bool:
    """Returns True if this is the folder of a site."""
    return (folder / SETTINGS).exists()


def site_statement(folder: Path, *, colluders: int = 1, group: int = 10) -> Statement:
    """Returns the privacy statement of a site, which may be running meanwhile.

    Args:
        folder: The site's folder.
        colluders: Number of other sites that collude.
        group: Number of records that may belong to one person.

    Raises:
        FedprivError: If the site has joined no federation, or a file is missing, damaged or altered.
        PrivacyError: If its federations have different privacy units or neighbouring relations.
    """
    settings = SiteSettings.read(folder / SETTINGS)
    card = SiteDescriptor.model_validate_json(files.read(folder / CARD))
    federations = [read_federation(path, card) for path in list_plan_files(folder)]
    if not federations:
        raise FedprivError(
            f"{folder} has joined no federation, so its privacy statement would be empty: accept a plan first "
            "(fedpriv site join)"
        )
    budget = settings.budget
    costs = compute_charge(federations, budget)
    so_far = compose([federation.done for federation in federations], budget.delta)
    return Statement(
        about=f"site {card.name}",
        subject="All that left this site",
        spent=compose(costs, budget.delta),
        data=settings.data.name,
        held_by=_held_by(card),
        used_for=wording.join_distinct(_used_for(federation) for federation in federations),
        cells=_cells(federations, costs, card, budget.delta, colluders, group),
        release_text=(_RELEASES, *_missing(federations, costs), *_absences(federations)),
        release_table=_release_table(federations),
        trust=(_trust(_min_colluders(federations)), "Nothing was simulated.", _ROLLBACK),
        not_protected=(_LEARNED, *wording.describe_frozen_networks([settings.data.model_dump(mode="json")])),
        secret=_secrets(folder),
        cost_text=(_COMPOSITION,),
        prices=_prices(federations, so_far),
        budgets=[("lifetime budget", _balance(so_far, budget))],
        checks=_checks(folder, federations),
    )


def _secrets(folder: Path) -> str:
    """Returns a note for the reader about the secrets of a site."""
    text = files.read(folder / SECRETS[0]).decode()
    if is_destroyed(text):
        return _SEALED
    if is_encrypted(text):
        return _KEEP_KEY
    return _KEEP_FOLDER


def _min_colluders(federations: Sequence[SiteFederation]) -> int | None:
    """Returns the number of colluding sites that every federation allows; None for any number."""
    return min((federation.colluders for federation in federations if federation.colluders is not None), default=None)


def _at_most(number: int) -> str:
    if number:
        return f"at most {number} of"
    return "none of"


def _cells(
    federations: Sequence[SiteFederation],
    costs: Sequence[RunCost],
    card: SiteDescriptor,
    delta: float,
    colluders: int,
    group: int,
) -> list[Cell]:
    """Returns the guarantees for this site's own records, for any behaviour of the others: one for each adversary."""
    costs = [
        replace(cost, sizes=_true_sizes(each.card), data=card.name)
        for each, cost in zip(federations, costs, strict=True)
    ]
    all_cells = compute_bound_matrix(costs, delta, colluders=colluders, group=group)
    cells = [cell for cell in all_cells if not cell.unit.endswith("clients")]
    if all(federation.proposal.is_graph for federation in federations):
        cells = [cell for cell in cells if cell.adversary != SERVER]  # there is no central party
    allowed = _min_colluders(federations)
    if allowed is None:
        return cells

    # the pair noise that counts for a site is computed for exactly the number of colluders in the plan
    assumption = f"pairs of sites keep their secrets, and {_at_most(allowed)} the others share what they know"
    bounded = [replace(cell, assumes=assumption) for cell in cells if cell.adversary in (MESSAGES, SERVER, MODEL)]
    outsiders = [cell for cell in bounded if cell.adversary == MESSAGES]
    if allowed:
        as_planned = [cell.with_colluders(allowed) for cell in outsiders]
    else:
        as_planned = []
    one_more = [cell.with_colluders(allowed + 1) for cell in outsiders]
    beyond_plan = [make_unbounded_cell(cell, "the plan names fewer, and no bound is known") for cell in one_more]
    return [*bounded, *as_planned, *beyond_plan]


def _true_sizes(card: SiteDescriptor) -> tuple[int, ...] | None:
    """Returns the number of the site's records from a card; None if the card declares another number."""
    if card.size_declared:
        return None
    return (card.size,)


def _held_by(card: SiteDescriptor) -> str:
    declared = "the true number"
    if card.size_declared:
        declared = "a number that it chose"
    return f"the site {card.name}; others receive its number of records, {card.size} ({declared})"


def _used_for(federation: SiteFederation) -> str:
    others = "with other sites"
    if federation.proposal.is_graph:
        others = "with neighbours on a graph, without a server"
    return f"{federation.proposal.purpose}, {others}"


def _missing(federations: Sequence[SiteFederation], costs: Sequence[RunCost]) -> list[str]:
    """Returns a sentence on each federation that is charged for more replies than the site sent."""
    return [
        f"{federation.proposal.document.run}: {len(cost.records) - len(federation.done.records)} more were "
        "planned and are charged: the party that ended it, or left the site out of a round, may have seen its "
        "answers."
        for federation, cost in zip(federations, costs, strict=True)
        if len(cost.records) > len(federation.done.records)
    ]


def _absences(federations: Sequence[SiteFederation]) -> list[str]:
    return [
        f"{federation.proposal.document.run}: signed notice of absence in rounds {notice.first + 1} to "
        f"{notice.last + 1} ({notice.reason})."
        for federation in federations
        for notice in federation.notices
    ]


def _release_table(federations: Sequence[SiteFederation]) -> Table:
    rows = [
        (
            federation.proposal.document.run,
            ", ".join(card.name for card in federation.proposal.cards),
            f"{wording.format_change_time(federation.plan)} to {wording.format_change_time(federation.ledger.path)}",
            f"{_describe_releases(federation)}; the plan has {len(federation.whole.records)}",
        )
        for federation in federations
    ]
    return (_HEADING, *rows)


def _describe_releases(federation: SiteFederation) -> str:
    releases = wording.describe_releases(federation.done.records)
    if federation.proposal.statistics is not None:  # the vectors are gradients of a linear model
        return releases.replace("x gradient", "x mean vector of all statistics")
    return releases


def _trust(colluders: int | None) -> str:
    others = "any number of them"
    if colluders is not None:
        others = f"{_at_most(colluders)} them"
    return f"{_OWN_NOISE} Others may share all their information: {others}."


def _prices(federations: Sequence[SiteFederation], so_far: PrivacySpent) -> Sequence[tuple[str, Price]]:
    delta = so_far.delta
    whole = [federation.whole for federation in federations]
    return [
        *((federation.done.name, compose([federation.done], delta)) for federation in federations),
        ("together so far", so_far),
        ("if all plans are carried out", (compose(whole, delta).epsilon, delta)),
        ("and with one more like the last", (compose([*whole, whole[-1]], delta).epsilon, delta)),
    ]


def _balance(spent: PrivacySpent, budget: SiteBudget) -> str:
    limit = f"{budget.epsilon:g} at delta={wording.format_small(budget.delta)}"
    return f"epsilon={round_up(spent.epsilon)} of {limit} is spent so far; a reply that would exceed it is refused"


def _checks(folder: Path, federations: Sequence[SiteFederation]) -> Rows:
    plans = [
        (f"{federation.proposal.document.run}: plan", federation.proposal.fingerprint) for federation in federations
    ]
    ledgers = [(f"{federation.proposal.document.run}: ledger", _chain(federation.ledger)) for federation in federations]
    # the last federation represents the others: the page names the ledger of each
    how_to_count = count_without_fedpriv(federations[-1].ledger, "one federation's own releases")
    return [
        *plans,
        *ledgers,
        ("was anything changed?", f"fedpriv statement {folder} must print the same heads; it rejects altered ledgers"),
        ("compute without fedpriv", how_to_count),
    ]


def _chain(ledger: LedgerFile) -> str:
    n_records = len(ledger.records)
    return f"{n_records} records in a chain, head {ledger.head(n_records)}; {ledger.path}"
