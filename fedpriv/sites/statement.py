"""The page about a site: what one organisation has released in all federations, counted from its own ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv import __version__
from fedpriv.errors import FedprivError
from fedpriv.privacy.accounting.spent import Spent, up
from fedpriv.privacy.composition import Spending, compose
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.reports import wording
from fedpriv.reports.statement import Section, Statement
from fedpriv.sites.card import Card
from fedpriv.sites.guard import of_one
from fedpriv.sites.notice import Notice
from fedpriv.sites.plan import Proposal
from fedpriv.sites.site_folder import CARD, LEDGER, NOTICES, SETTINGS, SiteSettings
from fedpriv.sites.terms import Terms
from fedpriv.storage import files

_TOLD = "That this site takes part, its card (name, public number of records, public key), and when it answers."
_OWN = (
    "The site drew its noise itself, from a secret that nobody else has. Others may tell each other all they know; "
    "where the guarantee says pairwise, at most as many as it names, and where it names none, any number."
)
_KEEP = "The site's folder holds its secrets: who has read it can subtract the noise. Keep it as the data are kept."


@dataclass(frozen=True)
class _Federation:
    """One federation, as this site has taken part in it."""

    proposal: Proposal
    ledger: LedgerFile | None
    plan: Path
    done: Spending
    whole: Spending
    notices: Sequence[Notice]


def is_site(folder: Path) -> bool:
    """Whether this is the folder of a site."""
    return (folder / SETTINGS).exists()


def statement_of_site(folder: Path) -> Statement:
    """The page about a site, which may be at work meanwhile.

    Raises:
        FedprivError: a file of it is missing, damaged or altered.
        PrivacyError: its federations protect nothing in common.
    """
    settings = SiteSettings.read(folder / SETTINGS)
    card = Card.model_validate_json(files.read(folder / CARD))
    found = [_read(path, card) for path in sorted((folder / "runs").glob("*/plan.yaml"))]
    if not found:
        raise FedprivError(f"{folder} has joined no federation: there is nothing to state yet")
    delta = settings.budget.delta
    spent, whole = compose([one.done for one in found], delta), compose([one.whole for one in found], delta)
    budget = f"epsilon={settings.budget.epsilon:g} at delta={wording.small(delta)}"
    return Statement(
        f"Privacy statement: site {card.name}",
        wording.sentence("All that left this site", spent),
        (
            _protected(settings, card, spent),
            Section("Who could learn what?", (wording.SCALE,), (("whoever sees all messages", str(spent)),)),
            _released(found),
            Section(
                "What does this rest on, and what was simulated?", (_OWN, "Nothing was simulated.", wording.ASSUMED)
            ),
            Section("What is not protected?", (_TOLD, wording.PUBLIC, _KEEP)),
            _cost(found, delta, spent, whole, budget),
            _verify(found),
        ),
    )


def _read(path: Path, card: Card) -> _Federation:
    proposal = Proposal.read(files.read(path).decode())
    number, n_sites = list(proposal.cards).index(card), len(proposal.cards)
    ledger = LedgerFile.read(path.with_name(LEDGER)) if path.with_name(LEDGER).exists() else None
    asked = [one for one in Terms.of(proposal).plan.records if one.clients is None or number in one.clients]

    def spending(records: Sequence[Record]) -> Spending:
        return Spending(proposal.document.run, [of_one(one, number, n_sites) for one in records], 1)

    done = spending([] if ledger is None else ledger.records)
    said = path.with_name(NOTICES)
    notices = [Notice.model_validate(one) for one in json.loads(files.read(said))] if said.exists() else []
    return _Federation(proposal, ledger, path, done, spending(asked), notices)


def _protected(settings: SiteSettings, card: Card, spent: Spent) -> Section:
    shared = spent.relation.partition("(")[2].removesuffix(")")
    declared = "a number that it chose" if card.size_declared else "as many as it has"
    rows = [
        ("data", settings.data.name),
        ("held by", f"the site {card.name}; others are told of {card.size} records, {declared}"),
        ("protected unit", wording.unit_of(spent)),
        *([("both have in common", shared)] if shared else []),
        ("guarantee", str(spent)),
    ]
    text = "If one person has several records, less is promised for that person than for one record."
    return Section("Whose data, and what of them is protected?", (text,) if spent.unit == "sample" else (), tuple(rows))


def _released(found: Sequence[_Federation]) -> Section:
    heading = ("federation", "with", "when (UTC, by its files)", "answers to questions about the data, and their noise")
    rows = tuple(
        (
            one.proposal.document.run,
            ", ".join(card.name for card in one.proposal.cards),
            f"{wording.changed(one.plan)} to {wording.changed(one.plan if one.ledger is None else one.ledger.path)}",
            f"{wording.released(one.done.records)}; of {len(one.whole.records)} that the plan has",
        )
        for one in found
    )
    text = "Every answer was noised and written down before the site's message was computed from it; nothing else left."
    for one in found:
        for said in one.notices:
            text += (
                f" {one.proposal.document.run}: the site has signed that it is absent in rounds {said.first + 1} to "
            )
            text += f"{said.last + 1} ({said.why})."
    return Section("What was released, and when?", (text,), (), (heading, *rows))


def _cost(found: Sequence[_Federation], delta: float, spent: Spent, whole: Spent, budget: str) -> Section:
    rows = [(one.done.name, str(compose([one.done], delta))) for one in found]
    rows += [("together so far", str(spent))]
    if math.isfinite(whole.epsilon):
        rows += [("if all plans are carried out", f"epsilon={up(whole.epsilon)} at delta={wording.small(delta)}")]
        again = compose([*(one.whole for one in found), found[-1].whole], delta)
        rows += [("and with one more like the last", f"epsilon={up(again.epsilon)} at delta={wording.small(delta)}")]
    rows += [("the site's budget", f"{budget}: an answer that would pass it is refused")]
    text = "Federations compose as one if joining later ones did not depend on the answers of earlier ones."
    return Section("What did all federations cost together, and what would another one cost?", (text,), tuple(rows))


def _verify(found: Sequence[_Federation]) -> Section:
    rows = [(f"{one.proposal.document.run}: plan", one.proposal.fingerprint) for one in found]
    for one in found:
        records = "no answer yet" if one.ledger is None else _chain(one.ledger)
        rows.append((f"{one.proposal.document.run}: ledger", records))
    rows.append(("made by", f"fedpriv {__version__} on {wording.now()}; a ledger proves what was written down"))
    return Section("How can this be verified?", (), tuple(rows))


def _chain(ledger: LedgerFile) -> str:
    return f"{len(ledger.records)} records in a chain, head {ledger.head(len(ledger.records))}; {ledger.path}"
