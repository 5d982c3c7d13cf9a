"""The page about a site: what one organisation has released in all federations, counted from its own ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.errors import FedprivError
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.adversaries import COLLUDERS, MESSAGES, MODEL, SERVER
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.matrix import Cell, matrix
from fedpriv.privacy.record import Record
from fedpriv.reports import wording
from fedpriv.reports.picture import draw_budget
from fedpriv.reports.statement import Statement, StatementSection, against, made_by, purpose_of, unbounded
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.on_record import ledger_beside, plan_files
from fedpriv.sites.plan_filter import of_one
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_folder import CARD, NOTICES, SETTINGS, SiteSettings
from fedpriv.storage import files

_TOLD = "That this site takes part, its card (name, public number of records, public key), and when it answers."
_OWN = "The site drew its noise itself, from a secret that nobody else has."
_KEEP = "The site's folder holds its secrets: who has read it can subtract the noise. Keep it as the data are kept."


@dataclass(frozen=True)
class _Federation:
    """One federation, as this site has taken part in it."""

    proposal: FederationPlan
    ledger: LedgerFile
    plan: Path
    done: RunCost
    whole: RunCost
    colluders: int | None
    notices: Sequence[AbsenceNotice]


def is_site(folder: Path) -> bool:
    """Whether this is the folder of a site."""
    return (folder / SETTINGS).exists()


def statement_of_site(folder: Path, *, colluders: int = 1, group: int = 10) -> Statement:
    """The page about a site, which may be at work meanwhile.

    Args:
        folder: Its folder.
        colluders: Number of other sites that collude.
        group: Number of records that one person may have.

    Raises:
        FedprivError: a file of it is missing, damaged or altered.
        PrivacyError: its federations protect nothing in common.
    """
    settings = SiteSettings.read(folder / SETTINGS)
    card = SiteDescriptor.model_validate_json(files.read(folder / CARD))
    found = [_read(path, card) for path in plan_files(folder)]
    if not found:
        raise FedprivError(f"{folder} has joined no federation: there is nothing to state yet")
    delta = settings.budget.delta
    spent, whole = compose([one.done for one in found], delta), compose([one.whole for one in found], delta)
    limit = f"{settings.budget.epsilon:g} at delta={wording.small(delta)}"
    return Statement(
        f"Privacy statement: site {card.name}",
        wording.sentence("All that left this site", spent),
        (
            _protected(settings, card, found, spent),
            against(_cells(found, card, delta, colluders, group)),
            _released(found),
            _rests(_named(found)),
            StatementSection("What is not protected?", (_TOLD, wording.public(), _KEEP)),
            _cost(found, spent, whole, limit),
            _verify(folder, found),
        ),
    )


def draw_site(folder: Path, place: Path) -> None:
    """Draw what a site has spent after each of its answered rounds, and its budget, as a PNG file.

    Plans are drawn one after another, in the order in which they were accepted; ledgers have no times, so that rounds
    of plans that overlapped are not interleaved. The last value is what all plans have spent together.

    Raises:
        FedprivError: a file of the site is missing, damaged or altered.
    """
    settings = SiteSettings.read(folder / SETTINGS)
    card = SiteDescriptor.model_validate_json(files.read(folder / CARD))
    delta, before = settings.budget.delta, list[RunCost]()
    spent, begins = {0: 0.0}, dict[int, str]()
    plans = sorted(plan_files(folder), key=lambda path: path.stat().st_mtime)
    for one in (_read(path, card) for path in plans):
        begins[max(spent)] = f"plan {one.proposal.fingerprint[:9]}"
        rounds = sorted({record.round for record in one.done.records})
        for so_far in rounds:
            released = [record for record in one.done.records if record.round <= so_far]
            spent[max(spent) + 1] = compose([*before, replace(one.done, records=released)], delta).epsilon
        before.append(one.done)
    draw_budget(spent, settings.budget.epsilon, begins, f"Site {card.name}: epsilon at delta={delta:g}", place)


def _read(path: Path, card: SiteDescriptor) -> _Federation:
    proposal = FederationPlan.read(files.read(path).decode())
    number, n_sites = list(proposal.cards).index(card), len(proposal.cards)
    ledger = ledger_beside(path)
    asked = [one for one in ResolvedPlan.of(proposal).plan.records if one.clients is None or number in one.clients]

    def spending(records: Sequence[Record]) -> RunCost:
        return RunCost(proposal.document.run, [of_one(one, number, n_sites) for one in records], 1)

    done = spending(ledger.records)
    said = path.with_name(NOTICES)
    if said.exists():
        notices = [AbsenceNotice.model_validate(one) for one in json.loads(files.read(said))]
    else:
        notices = []
    named = min((one.pairs.colluders for one in asked if one.pairs is not None), default=None)
    return _Federation(proposal, ledger, path, done, spending(asked), named, notices)


def _named(found: Sequence[_Federation]) -> int | None:
    """How many sites may tell what they know, in every federation; None for any number."""
    return min((one.colluders for one in found if one.colluders is not None), default=None)


def _at_most(number: int) -> str:
    if number:
        return f"at most {number} of"
    return "none of"


def _cells(found: Sequence[_Federation], card: SiteDescriptor, delta: float, colluders: int, group: int) -> list[Cell]:
    """What holds for this site's own records, whatever the others do."""
    sizes, named = None if card.size_declared else (card.size,), _named(found)
    own = [replace(one.done, sizes=sizes, data=card.name) for one in found]
    cells = [one for one in matrix(own, delta, colluders=colluders, group=group) if not one.unit.endswith("clients")]
    if named is None:
        return cells
    # a site's part of the noise of pairs is counted for as many colluders as the plan names, and for no more
    told = f"pairs of sites keep their secrets, and {_at_most(named)} the others tell what they know"
    known = [replace(one, assumes=told) for one in cells if one.adversary in (MESSAGES, SERVER, MODEL)]
    few = [replace(one, adversary=f"{named} {COLLUDERS}") for one in known if one.adversary == MESSAGES and named]
    many = [replace(one, adversary=f"{named + 1} {COLLUDERS}") for one in known if one.adversary == MESSAGES]
    return [*known, *few, *(unbounded(one, "the plan names fewer, and no bound is known") for one in many)]


def _protected(
    settings: SiteSettings, card: SiteDescriptor, found: Sequence[_Federation], spent: PrivacySpent
) -> StatementSection:
    shared = spent.relation.partition("(")[2].removesuffix(")")
    if card.size_declared:
        declared = "a number that it chose"
    else:
        declared = "as many as it has"
    rows = [
        ("data", settings.data.name),
        ("held by", f"the site {card.name}; others are told of {card.size} records, {declared}"),
        ("used for", "; ".join(dict.fromkeys(_used_for(one) for one in found))),
        ("protected unit", wording.unit_of(spent)),
        *([("both have in common", shared)] if shared else []),
        ("guarantee", str(spent)),
    ]
    if spent.unit == "sample":
        text = (wording.PERSON,)
    else:
        text = ()
    return StatementSection("Whose data, and what of them is protected?", text, tuple(rows))


def _used_for(one: _Federation) -> str:
    settings = one.proposal.document.settings
    return f"{purpose_of(settings)}, {settings['rounds']} rounds, with other sites"


def _released(found: Sequence[_Federation]) -> StatementSection:
    heading = ("federation", "with", "when (UTC, by its files)", "answers to questions about the data, and their noise")
    rows = tuple(
        (
            one.proposal.document.run,
            ", ".join(card.name for card in one.proposal.cards),
            f"{wording.changed(one.plan)} to {wording.changed(one.ledger.path)}",
            f"{wording.released(one.done.records)}; of {len(one.whole.records)} that the plan has",
        )
        for one in found
    )
    text = "Every answer was noised and written down before the site's message was computed from it; nothing else left."
    signed = [
        f"{one.proposal.document.run}: signed to be absent in rounds {said.first + 1} to {said.last + 1} ({said.why})."
        for one in found
        for said in one.notices
    ]
    return StatementSection("What was released, and when?", (text, *signed), (), (heading, *rows))


def _cost(found: Sequence[_Federation], spent: PrivacySpent, whole: PrivacySpent, limit: str) -> StatementSection:
    delta = spent.delta
    rows = [(one.done.name, str(compose([one.done], delta))) for one in found]
    rows += [("together so far", str(spent))]
    if math.isfinite(whole.epsilon):
        rows += [("if all plans are carried out", f"epsilon={round_up(whole.epsilon)} at delta={wording.small(delta)}")]
        again = compose([*(one.whole for one in found), found[-1].whole], delta)
        rows += [
            ("and with one more like the last", f"epsilon={round_up(again.epsilon)} at delta={wording.small(delta)}")
        ]
    so_far = f"epsilon={round_up(spent.epsilon)} of {limit} is spent so far; an answer that would pass it is refused"
    rows += [("the site's lifetime budget", so_far)]
    text = "Federations compose as one if joining later ones did not depend on the answers of earlier ones."
    return StatementSection(
        "What did all federations cost together, and what would another one cost?", (text,), tuple(rows)
    )


def _rests(named: int | None) -> StatementSection:
    if named is None:
        others = "any number of them"
    else:
        others = f"{_at_most(named)} them"
    said = f"{_OWN} Others may tell each other all they know: {others}."
    return StatementSection(
        "What does this rest on, and what was simulated?", (said, "Nothing was simulated.", wording.ASSUMED)
    )


def _verify(folder: Path, found: Sequence[_Federation]) -> StatementSection:
    rows = [(f"{one.proposal.document.run}: plan", one.proposal.fingerprint) for one in found]
    for one in found:
        rows.append((f"{one.proposal.document.run}: ledger", _chain(one.ledger)))
    same = f"fedpriv statement {folder} must print the same heads; it refuses a ledger that was altered"
    rows += [("was anything changed?", same), made_by()]
    return StatementSection("How can this be verified?", (), tuple(rows))


def _chain(ledger: LedgerFile) -> str:
    return f"{len(ledger.records)} records in a chain, head {ledger.head(len(ledger.records))}; {ledger.path}"
