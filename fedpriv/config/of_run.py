"""Recovers the plan of a run from the configuration in its folder."""

from __future__ import annotations

from fedpriv.config.building import outline, planned
from fedpriv.config.files import load_config
from fedpriv.errors import FedprivError
from fedpriv.planning.plan import FirstPart
from fedpriv.reports.spendings import PlannedSpending, ended_early
from fedpriv.runs.run_accountant import remaining_records
from fedpriv.runs.run_files import RunFiles


def plan_of(files: RunFiles) -> PlannedSpending:
    """Returns public sizes and unreleased records of a run's plan; empty if its configuration cannot be used here."""
    if files.config is None:
        return PlannedSpending()
    try:
        config = load_config(files.folder / "config.yaml")
        sizes = outline(config).sizes
        if not ended_early(files) or files.result is None or files.checkpoint is None:
            return PlannedSpending(sizes=sizes)
        plan = planned(config, int(files.checkpoint.seed, 16), FirstPart.of(files.ledger))
    except FedprivError:
        return PlannedSpending()
    return PlannedSpending(tuple(remaining_records(plan, files.result["rounds"])), sizes)
