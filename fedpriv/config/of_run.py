"""Recovers the plan of a run from the configuration in its folder."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.config.building import outline, planned
from fedpriv.config.files import load_config
from fedpriv.errors import FedprivError
from fedpriv.planning.plan import FirstPart, Plan
from fedpriv.privacy.accounting.events import cost_of
from fedpriv.privacy.accounting.plan_filter import SLACK, covers
from fedpriv.reports.spendings import PlannedSpending, ended_early
from fedpriv.runs.run_accountant import remaining_records
from fedpriv.runs.run_files import RunFiles, fixed_data
from fedpriv.runs.settings_in_words import settings_in_words

_LONGEST = 60  # characters of sizes in a checkpoint's words; of longer texts the end is not there


def plan_of(files: RunFiles) -> PlannedSpending:
    """Returns public sizes and unreleased records of a run's plan; empty if its configuration cannot be used here.

    Both follow from the data as they are now. Files of the user's own may have changed since the run: sizes are then
    unknown, and so are the remaining records of a plan that is no longer that of the releases on record.
    """
    if files.config is None:
        return PlannedSpending()
    try:
        config = load_config(files.folder / "config.yaml")
        sizes = outline(config).sizes
        if not _are_sizes_of_run(sizes, files):
            sizes = None
        if not ended_early(files) or files.result is None or files.checkpoint is None:
            return PlannedSpending(sizes=sizes)
        plan = planned(config, int(files.checkpoint.seed, 16), FirstPart.of(files.ledger))
    except FedprivError:
        return PlannedSpending()
    if not _is_plan_of_run(plan, files) or (sizes is None and not files.ledger.records):
        return PlannedSpending(sizes=sizes)
    return PlannedSpending(tuple(remaining_records(plan, files.result["rounds"])), sizes)


def _are_sizes_of_run(sizes: Sequence[int], files: RunFiles) -> bool:
    """Returns whether the clients of the run had these numbers of examples; False if that is not on record."""
    if fixed_data(files.config) is not None:
        return True
    if files.checkpoint is None:
        return False
    text = settings_in_words(sizes=list(sizes))["sizes"]
    return text == files.checkpoint.words.get("sizes") and len(text) < _LONGEST


def _is_plan_of_run(plan: Plan, files: RunFiles) -> bool:
    """Returns whether a plan has every release on record, at no less than its price: then its rest is that of the run.

    Sizes enter a plan where batches have a fixed size: of more examples than there were, they would cost too little.
    """
    if plan.n_clients != files.ledger.header.n_clients:
        return False
    costs = {(record.round, record.query, record.index): cost_of(record, plan.n_clients) for record in plan.records}
    for record in files.ledger.records:
        cost = costs.get((record.round, record.query, record.index))
        if cost is None or not covers(cost, cost_of(record, plan.n_clients), SLACK):
            return False
    return True
