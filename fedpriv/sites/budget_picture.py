"""Draws the privacy spending of a site after each of its answered rounds, and its budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpriv.privacy import RunCost, compose
from fedpriv.reports.picture import draw_budget
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.site_federations import read_federation
from fedpriv.sites.site_folder import CARD, SETTINGS
from fedpriv.sites.site_records import list_plan_files
from fedpriv.sites.site_settings import SiteSettings
from fedpriv.storage import files


def draw_site(folder: Path, path: Path) -> None:
    """Draws the privacy spending of a site after each of its answered rounds, and its budget, to a PNG file.

    Plans are drawn one after another, in the order in which they were accepted. Ledgers contain no times, so rounds of
    overlapping plans are not interleaved. The last value is the total spending of all plans.

    Args:
        folder: The site's folder.
        path: The PNG file to write.

    Raises:
        FedprivError: If a file of the site is missing, damaged or altered.
    """
    settings = SiteSettings.read(folder / SETTINGS)
    card = SiteDescriptor.model_validate_json(files.read(folder / CARD))
    delta = settings.budget.delta
    earlier: list[RunCost] = []  # federations that are already drawn
    spent = {0: 0.0}  # epsilon, by number of answered rounds
    begins: dict[int, str] = {}  # labels, by the number of rounds before a federation
    plans = sorted(list_plan_files(folder), key=lambda file: file.stat().st_mtime)
    for federation in (read_federation(file, card) for file in plans):
        begins[max(spent)] = f"plan {federation.proposal.fingerprint[:9]}"
        rounds = sorted({record.round for record in federation.done.records})
        for last_round in rounds:
            released = [record for record in federation.done.records if record.round <= last_round]
            spent[max(spent) + 1] = compose([*earlier, replace(federation.done, records=released)], delta).epsilon
        earlier.append(federation.done)
    draw_budget(spent, settings.budget.epsilon, begins, f"Site {card.name}: epsilon at delta={delta:g}", path)
