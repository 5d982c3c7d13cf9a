"""The privacy statement of a site: what one organisation has released in all federations, from its own ledgers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.errors import FedprivError
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.adversaries import COLLUDERS, MESSAGES, MODEL, SERVER
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.matrix import Cell, matrix
from fedpriv.reports import wording
from fedpriv.reports.statement import (
    Statement,
    StatementSection,
    against,
    count_without_fedpriv,
    made_by,
    purpose_of,
    unbounded,
)
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.on_record import plan_files
from fedpriv.sites.site_federations import SiteFederation, charged, read_federation
from fedpriv.sites.site_folder import CARD, SECRETS
from fedpriv.sites.site_settings import SETTINGS, SiteSettings
from fedpriv.storage import files
from fedpriv.storage.secret_store import is_destroyed, is_encrypted

_LEARNED = "That this site takes part, its card (name, public number of records, public key), and when it answers."
_OWN_NOISE = "The site drew its noise itself, from random bits that died with its process."
_KEEP_FOLDER = (
    "The site's folder holds its keys: who has read it can subtract the noise that it shares with others, and sign for "
    "it. Keep it as the data are kept."
)
_KEEP_KEY = (
    "The site's folder holds its keys encrypted; who has it and what decrypts them can subtract the noise that the "
    "site shares with others. Keep both apart, "
    "and the folder as the data are kept: it may hold the site's state."
)
_SEALED = (
    "The site's keys were destroyed: nobody can compute from its folder the noise that it shared with others. Copies "
    "of the folder from before may still hold them."
)


_ROLLBACK = (
    "The site's folder was never brought back from an older copy. With each reply the site signs how much it has on "
    "record; whoever asks shows it this count with the next question, and a site that is shown more than its ledger "
    "has stops, and has no statement. This shows nothing if those who ask hide the count, lost the reply, or were set "
    "back as well."
)


def is_site(folder: Path) -> bool:
    """Returns whether this is the folder of a site."""
    return (folder / SETTINGS).exists()


def site_statement(folder: Path, *, colluders: int = 1, group: int = 10) -> Statement:
    """Returns the privacy statement of a site, which may be at work meanwhile.

    Args:
        folder: The site's folder.
        colluders: Number of other sites that collude.
        group: Number of records that one person may have.

    Raises:
        FedprivError: the site has joined no federation, or a file is missing, damaged or altered.
        PrivacyError: its federations do not protect the same unit and relation.
    """
    settings = SiteSettings.read(folder / SETTINGS)
    card = SiteDescriptor.model_validate_json(files.read(folder / CARD))
    federations = [read_federation(path, card) for path in plan_files(folder)]
    if not federations:
        raise FedprivError(f"{folder} has joined no federation: there is nothing to state yet")
    delta = settings.budget.delta
    costs = charged(federations, settings.budget)
    spent = compose(costs, delta)
    so_far = compose([federation.done for federation in federations], delta)
    whole = compose([federation.whole for federation in federations], delta)
    networks = wording.frozen_networks([settings.data.model_dump(mode="json")])
    limit = f"{settings.budget.epsilon:g} at delta={wording.small(delta)}"
    return Statement(
        f"Privacy statement: site {card.name}",
        wording.sentence("All that left this site", spent),
        (
            _protected(settings, card, federations, spent),
            against(_cells(federations, costs, card, delta, colluders, group)),
            _released(federations, costs),
            _assumptions(_min_colluders(federations), spent),
            StatementSection("What is not protected?", (_LEARNED, wording.public(), *networks, _secrets(folder))),
            _cost(federations, so_far, whole, limit),
            _verification(folder, federations),
        ),
    )


def _secrets(folder: Path) -> str:
    """Returns what the reader must know about the secrets of a site."""
    text = files.read(folder / SECRETS[0]).decode()
    if is_destroyed(text):
        return _SEALED
    if is_encrypted(text):
        return _KEEP_KEY
    return _KEEP_FOLDER


def _min_colluders(federations: Sequence[SiteFederation]) -> int | None:
    """Returns the number of colluding sites that every federation allows for; None for any number."""
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
    """Returns the guarantees for this site's own records, whatever the others do: one cell for each adversary."""
    costs = [
        replace(cost, sizes=_true_sizes(each.card), data=card.name)
        for each, cost in zip(federations, costs, strict=True)
    ]
    all_cells = matrix(costs, delta, colluders=colluders, group=group)
    cells = [cell for cell in all_cells if not cell.unit.endswith("clients")]
    if all(federation.proposal.is_graph for federation in federations):
        cells = [cell for cell in cells if cell.adversary != SERVER]  # nobody is in the middle
    allowed = _min_colluders(federations)
    if allowed is None:
        return cells

    # the pair noise that counts for a site is computed for as many colluders as the plan names, and for no more
    assumption = f"pairs of sites keep their secrets, and {_at_most(allowed)} the others tell what they know"
    bounded = [replace(cell, assumes=assumption) for cell in cells if cell.adversary in (MESSAGES, SERVER, MODEL)]
    outsiders = [cell for cell in bounded if cell.adversary == MESSAGES]
    if allowed:
        as_planned = [replace(cell, adversary=f"{allowed} {COLLUDERS}") for cell in outsiders]
    else:
        as_planned = []
    one_more = [replace(cell, adversary=f"{allowed + 1} {COLLUDERS}") for cell in outsiders]
    beyond_plan = [unbounded(cell, "the plan names fewer, and no bound is known") for cell in one_more]
    return [*bounded, *as_planned, *beyond_plan]


def _true_sizes(card: SiteDescriptor) -> tuple[int, ...] | None:
    """Returns the number of the site's records, as a card has it; None where it declares another one."""
    if card.size_declared:
        return None
    return (card.size,)


def _protected(
    settings: SiteSettings, card: SiteDescriptor, federations: Sequence[SiteFederation], spent: PrivacySpent
) -> StatementSection:
    # a relation may name public facts that neighbouring data sets share, in parentheses
    shared = spent.relation.partition("(")[2].removesuffix(")")
    if card.size_declared:
        declared = "a number that it chose"
    else:
        declared = "as many as it has"
    rows = [
        ("data", settings.data.name),
        ("held by", f"the site {card.name}; others are told of {card.size} records, {declared}"),
        ("used for", "; ".join(dict.fromkeys(_used_for(federation) for federation in federations))),
        ("protected unit", wording.unit_of(spent)),
        *([("both have in common", shared)] if shared else []),
        ("guarantee", str(spent)),
    ]
    if spent.unit == "sample":
        text = (wording.PERSON,)
    else:
        text = ()
    return StatementSection("Whose data, and what of them is protected?", text, tuple(rows))


def _used_for(federation: SiteFederation) -> str:
    settings = federation.proposal.document.settings
    if federation.proposal.is_graph:
        return f"{purpose_of(settings)}, {settings['rounds']} rounds, with neighbours on a graph, without a server"
    return f"{purpose_of(settings)}, {settings['rounds']} rounds, with other sites"


def _released(federations: Sequence[SiteFederation], costs: Sequence[RunCost]) -> StatementSection:
    heading = ("federation", "with", "when (UTC, by its files)", "answers to questions about the data, and their noise")
    rows = tuple(
        (
            federation.proposal.document.run,
            ", ".join(card.name for card in federation.proposal.cards),
            f"{wording.changed(federation.plan)} to {wording.changed(federation.ledger.path)}",
            f"{wording.released(federation.done.records)}; of {len(federation.whole.records)} that the plan has",
        )
        for federation in federations
    )
    text = "Every answer was noised and written down before the site's message was computed from it; nothing else left."
    signed = [
        f"{federation.proposal.document.run}: signed to be absent in rounds {notice.first + 1} to {notice.last + 1} "
        f"({notice.why})."
        for federation in federations
        for notice in federation.notices
    ]
    missing = [
        f"{federation.proposal.document.run}: {len(cost.records) - len(federation.done.records)} more were planned and "
        "are charged: who ended it, or left the site out of a round, may have seen its answers."
        for federation, cost in zip(federations, costs, strict=True)
        if len(cost.records) > len(federation.done.records)
    ]
    return StatementSection("What was released, and when?", (text, *missing, *signed), (), (heading, *rows))


def _cost(
    federations: Sequence[SiteFederation], spent: PrivacySpent, whole: PrivacySpent, limit: str
) -> StatementSection:
    delta = spent.delta
    rows = [(federation.done.name, str(compose([federation.done], delta))) for federation in federations]
    rows += [("together so far", str(spent))]
    if math.isfinite(whole.epsilon):
        rows += [("if all plans are carried out", f"epsilon={round_up(whole.epsilon)} at delta={wording.small(delta)}")]
        repeated = compose([*(federation.whole for federation in federations), federations[-1].whole], delta)
        rows += [
            ("and with one more like the last", f"epsilon={round_up(repeated.epsilon)} at delta={wording.small(delta)}")
        ]
    used = f"epsilon={round_up(spent.epsilon)} of {limit} is spent so far; an answer that would pass it is refused"
    rows += [("the site's lifetime budget", used)]
    text = (
        "Federations compose as one if joining later ones did not depend on the answers of earlier ones. What is spent "
        "so far (as `fedpriv site status` prints it) holds if answers did not decide how many there were. The sentence "
        "at the top, and parts 1 and 2, do not need that: they count each begun plan whole."
    )
    return StatementSection(
        "What did all federations cost together, and what would another one cost?", (text,), tuple(rows)
    )


def _assumptions(colluders: int | None, spent: PrivacySpent) -> StatementSection:
    if colluders is None:
        others = "any number of them"
    else:
        others = f"{_at_most(colluders)} them"
    text = f"{_OWN_NOISE} Others may tell each other all they know: {others}."
    sentences = (text, "Nothing was simulated.", _ROLLBACK, wording.ASSUMED, *wording.rounding(spent))
    return StatementSection("What does this rest on, and what was simulated?", sentences)


def _verification(folder: Path, federations: Sequence[SiteFederation]) -> StatementSection:
    rows = [
        (f"{federation.proposal.document.run}: plan", federation.proposal.fingerprint) for federation in federations
    ]
    for federation in federations:
        ledger = federation.ledger
        n_records = len(ledger.records)
        chain = f"{n_records} records in a chain, head {ledger.head(n_records)}; {ledger.path}"
        rows.append((f"{federation.proposal.document.run}: ledger", chain))
    same = f"fedpriv statement {folder} must print the same heads; it refuses a ledger that was altered"
    rows.append(("was anything changed?", same))
    # the last federation stands for the others: the page names the ledger of each
    rows.append(count_without_fedpriv(federations[-1].ledger, "one federation's own answers"))
    rows.append(made_by())
    return StatementSection("How can this be verified?", (), tuple(rows))
