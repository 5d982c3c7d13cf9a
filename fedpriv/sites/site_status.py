"""An overview for the owner of a site, from the site's files, also while it is running."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError, LedgerError
from fedpriv.privacy import compose
from fedpriv.privacy.accounting import round_up
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.connection_file import connection_rows
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan, fingerprint_of_hash
from fedpriv.sites.operator_log import read_log
from fedpriv.sites.plan_filter import single_site_record
from fedpriv.sites.proposals import ProposalBox
from fedpriv.sites.site_accountant import SiteAccountant
from fedpriv.sites.site_federations import compute_charge, read_federation
from fedpriv.sites.site_folder import CARD
from fedpriv.sites.site_records import NOTICES, STATE, SessionState, list_plan_files, read_notices, read_plan_ledger
from fedpriv.sites.site_settings import SETTINGS, SiteSettings, require_site
from fedpriv.storage import files

_N_REFUSALS = 5


def site_status(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Returns tables of text: the site with its budget, connections, plans, proposals, and the last events of its log.

    Args:
        folder: The site's folder.

    Raises:
        FedprivError: If there is no site.
    """
    require_site(folder)
    settings = SiteSettings.read(folder / SETTINGS)
    card = SiteDescriptor.model_validate_json(files.read(folder / CARD))
    budget = settings.budget
    rows = {"name": card.name, "budget": f"epsilon={budget.epsilon:g} (delta={budget.delta:g}), over all plans"}
    tables: dict[str, Mapping[str, str]] = {"site": rows, "connections": connection_rows(folder)}
    try:
        plans = {path: FederationPlan.read(files.read(path).decode()) for path in list_plan_files(folder)}
        accountant = SiteAccountant(
            budget.epsilon, budget.delta, {str(path): _records(path, plan, card) for path, plan in plans.items()}
        )
        spent = accountant.spent().epsilon
        rows["spent"] = (
            f"epsilon={spent:.4g} by the replies so far; epsilon={max(0.0, budget.epsilon - spent):.4g} is left"
        )
        in_statement = _charged(folder, settings, card)
        if in_statement is not None and round_up(in_statement) != round_up(spent):
            rows["in a statement"] = (
                f"epsilon={round_up(in_statement)}: `fedpriv statement` charges each begun plan in full, because a "
                "server that ends a plan early, or leaves this site out of a round, may have seen this site's "
                "replies first"
            )
        for path, plan in plans.items():
            tables[f"plan {plan.fingerprint}"] = _plan_rows(path, plan, card)
    except LedgerError as error:
        rows["spent"] = f"unknown, so the site does not reply: {error}"
    proposals = {
        proposal.fingerprint: " ".join(
            [
                proposal.decision,
                f"(from {proposal.party or 'unknown'})",
                *([proposal.reason] if proposal.reason else []),
            ]
        )
        for proposal in ProposalBox(folder).proposals
    }
    if proposals:
        tables["proposals"] = proposals
    answered = read_log(folder, "answered", 1)
    if answered:
        rows["last answer"] = _event(answered[0])
    refusals = {str(event["time"]): _event(event) for event in read_log(folder, "refused", _N_REFUSALS)}
    if refusals:
        tables["last refusals"] = refusals
    return tables


def _charged(folder: Path, settings: SiteSettings, card: SiteDescriptor) -> float | None:
    """Returns the first epsilon of a site's statement; None if the cost of a plan cannot be computed here.

    This occurs for a plan that names code, and for a plan with damaged files.
    """
    try:
        federations = tuple(read_federation(path, card) for path in list_plan_files(folder))
        if not federations:
            return None
        return compose(compute_charge(federations, settings.budget), settings.budget.delta).epsilon
    except FedprivError:
        return None


def _records(path: Path, plan: FederationPlan, card: SiteDescriptor) -> list[Any]:
    number = [other.key for other in plan.cards].index(card.key)
    return [single_site_record(record, number, len(plan.cards)) for record in read_plan_ledger(path).records]


def _plan_rows(path: Path, plan: FederationPlan, card: SiteDescriptor) -> dict[str, str]:
    last_round = SessionState.read(path.with_name(STATE)).round
    if plan.statistics is None:
        what = {"algorithm": str(plan.document.settings["strategy"]["name"])}
    else:
        what = {"purpose": plan.purpose}
    rows = {
        **what,
        "rounds": f"{last_round + 1} of {plan.rounds} answered or passed",
        "with": ", ".join(other.name for other in plan.cards if other.key != card.key),
    }
    absent = [_absence(notice) for notice in read_notices(path.with_name(NOTICES))]
    if absent:
        rows["signed absent"] = "; ".join(absent)
    return rows


def _absence(notice: AbsenceNotice) -> str:
    return f"rounds {notice.first + 1} to {notice.last + 1} ({notice.reason})"


def _event(event: Mapping[str, Any]) -> str:
    """Returns an event of the log as text: the party, the event, and its plan and round."""
    words = [str(event["time"]), str(event.get("party"))]
    if "code" in event:
        words += [f"{event['code']}, {event.get('times')} times so far"]
    if event.get("plan"):
        words += [f"plan {fingerprint_of_hash(str(event['plan']))[:9]}, round {event.get('round')}"]
    return "; ".join(words)
