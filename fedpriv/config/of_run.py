"""Recovers the plan of a run from the configuration in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpriv.config.building import outline, planned
from fedpriv.config.files import load_config
from fedpriv.errors import FedprivError
from fedpriv.planning.plan import FirstPart, Plan
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.events import cost_of
from fedpriv.privacy.accounting.plan_filter import SLACK, covers, n_within
from fedpriv.privacy.record import Record
from fedpriv.reports.spendings import PlannedSpending, may_stay_unfinished
from fedpriv.runs.checkpoint import Checkpoint
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
        if not may_stay_unfinished(files) or files.checkpoint is None:
            return PlannedSpending(sizes=sizes)
        plan = planned(config, int(files.checkpoint.seed, 16), FirstPart.of(files.ledger))
    except FedprivError:
        return PlannedSpending()
    if not _is_plan_of_run(plan, files) or (sizes is None and not files.ledger.records):
        return PlannedSpending(sizes=sizes)
    return PlannedSpending(tuple(_remaining(plan, files.ledger.records, files.checkpoint)), sizes)


def _remaining(plan: Plan, on_record: Sequence[Record], checkpoint: Checkpoint) -> Sequence[Record]:
    """Returns the releases of a plan that a run has not made, as far as its target allows them.

    Args:
        plan: The plan.
        on_record: All that the run has released.
        checkpoint: Its last checkpoint, whose attempt is the one that would go on.
    """
    if not plan.privacy.private:
        return []
    of_attempt = [record for record in on_record if record.attempt == checkpoint.attempt]
    # an attempt with fresh noise begins at a checkpoint, and makes later rounds of an earlier attempt again
    first = min((record.round for record in of_attempt), default=checkpoint.round)
    keys = {(record.round, record.query, record.index) for record in of_attempt}
    remaining = [
        replace(record, attempt=checkpoint.attempt)
        for record in plan.records
        if record.round >= first and (record.round, record.query, record.index) not in keys
    ]
    if plan.privacy.epsilon is None or plan.calibrated:
        return remaining
    accountant = Accountant(plan.n_clients, plan.privacy.delta)
    for record in on_record:
        accountant.count(record)
    return remaining[: n_within(accountant, remaining, plan.privacy.epsilon)]


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
