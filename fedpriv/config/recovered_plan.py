"""Recovers the plan of a run from its checkpoint, or from the configuration in its folder."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.config.building import load_plan, read_outline
from fedpriv.config.files import load_config
from fedpriv.config.schema import Config
from fedpriv.errors import FedprivError
from fedpriv.planning import FirstPart
from fedpriv.privacy import Record
from fedpriv.reports.spending import PlannedSpending, may_stay_unfinished
from fedpriv.runs import PlannedReleases, RunFiles, describe_fixed_data, format_settings

_LONGEST = 60  # characters of sizes in a checkpoint's text; longer texts are cut


def recover_plan(files: RunFiles) -> PlannedSpending:
    """Returns public sizes and unreleased records of a run's plan; None for each that is unknown.

    The sizes are computed from the configuration and the data in their present state. User files may have changed since
    the run; sizes are then unknown.
    """
    config = None
    sizes = None
    if files.config is not None:
        try:
            config = load_config(files.folder / "config.yaml")
            sizes = read_outline(config).sizes
            if not _are_sizes_of_run(sizes, files):
                sizes = None
        except FedprivError:
            config = None
    if not may_stay_unfinished(files):
        return PlannedSpending(sizes=sizes)
    return PlannedSpending(_remaining(files, config, sizes), sizes)


def _remaining(files: RunFiles, config: Config | None, sizes: Sequence[int] | None) -> tuple[Record, ...] | None:
    """Returns the releases of its plan that a run has not made; None if they are unknown."""
    checkpoint = files.checkpoint
    if checkpoint is None:
        return None
    try:
        if checkpoint.plan:
            plan = PlannedReleases.unpacked(checkpoint.plan, files.ledger.header)
        elif config is None or (sizes is None and not files.ledger.records):
            return None
        else:
            # a checkpoint of an earlier version: the plan is recomputed from the configuration, if the data are the
            # same
            plan = PlannedReleases.of(load_plan(config, int(checkpoint.seed, 16), FirstPart.of(files.ledger)))
        if not plan.is_of(files.ledger):
            return None
        return tuple(plan.remaining(files.ledger.records, checkpoint.attempt, checkpoint.round))
    except (FedprivError, ValueError):
        return None


def _are_sizes_of_run(sizes: Sequence[int], files: RunFiles) -> bool:
    """Returns True if the clients of the run had these numbers of examples; False if that is not on record."""
    if describe_fixed_data(files.config) is not None:
        return True
    if files.checkpoint is None:
        return False
    text = format_settings(sizes=list(sizes))["sizes"]
    return text == files.checkpoint.words.get("sizes") and len(text) < _LONGEST
