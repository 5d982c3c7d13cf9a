"""Reads the releases and the charge of a run from its folder."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.errors import PrivacyError
from fedpriv.privacy import Record, RunCost
from fedpriv.runs import CHARGED_WHOLE, RunFiles, describe_fixed_data, find_problems, raise_problems


@dataclass(frozen=True)
class PlannedSpending:
    """Facts about a run that its ledger does not contain.

    Attributes:
        remaining: The planned releases that it has not made and could still make; None if unknown.
        sizes: Public number of examples of each client in the run; None if unknown.
    """

    remaining: tuple[Record, ...] | None = None
    sizes: tuple[int, ...] | None = None


def ended_early(files: RunFiles) -> bool:
    """True if a finished run stopped before its plan ended, for a reason that may depend on its data."""
    return files.result is not None and files.result["ended"] in CHARGED_WHOLE


def may_stay_unfinished(files: RunFiles) -> bool:
    """True if a run has not completed its plan, for a reason that may depend on its data, or because it is running."""
    return files.result is None or ended_early(files)


def is_unfinished(files: RunFiles, plan: PlannedSpending) -> bool:
    """True if a run has written no result and could still release something.

    A run of a Python program may end without a result: it is finished once it has completed its plan, or as much of it
    as its target allows.
    """
    return files.result is None and plan.remaining != ()


def compute_run_charge(files: RunFiles, plan: PlannedSpending) -> RunCost:
    """Returns the charge of a run.

    An unfinished run is charged for its whole plan, as if it were never resumed: the decision to stop it may depend on
    its releases.

    Args:
        files: The files of the run.
        plan: The known facts about its plan.

    Raises:
        LedgerError: If the run's files are altered or incomplete.
        PrivacyError: If the run ended early or is not finished, and the remaining releases of its plan, for which it is
            charged, are unknown.
    """
    raise_problems(find_problems(files))
    header = files.ledger.header
    name = str(files.folder)
    records = list(files.ledger.records)
    if may_stay_unfinished(files):
        if plan.remaining is None:
            why = "ended early"
            if files.result is None:
                why = "is not finished"
            raise PrivacyError(
                f"{name} {why}, so its whole plan is charged, but this plan is unknown: the checkpoint, written by an "
                "earlier version, does not contain it, and it cannot be computed from the configuration and the "
                "data. Restore config.yaml or the data files, allow the run's plugins (--allow-plugins), or use "
                "fedpriv.total with the results in Python"
            )
        records += plan.remaining
    if header.n_clients is None:
        raise PrivacyError(
            f"{name} has a ledger of an early version, which does not contain the number of clients: account for "
            "this run with the version that wrote it"
        )
    return RunCost(
        name,
        records,
        header.n_clients,
        describe_fixed_data(files.config),
        plan.sizes,
        files.not_covered,
        files.ledger.first_run,
        header.float64_noise,
    )
