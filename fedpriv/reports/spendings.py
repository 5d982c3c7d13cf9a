"""What a run's folder says that it released."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedpriv.errors import PrivacyError
from fedpriv.privacy.composition import RunCost
from fedpriv.privacy.record import Record
from fedpriv.runs.integrity import findings, refuse
from fedpriv.runs.run_accountant import STOPPED_EARLY
from fedpriv.runs.run_files import RunFiles


@dataclass(frozen=True)
class PlannedSpending:
    """What is known of a run besides its files.

    Attributes:
        rest: The releases that were planned for the rounds after its last one.
        sizes: Public number of examples of each client; None if it is not known.
    """

    rest: tuple[Record, ...] | None = None
    sizes: tuple[int, ...] | None = None


def ended_early(files: RunFiles) -> bool:
    """Whether a finished run stopped before its plan ended, for a reason that may depend on its data."""
    return files.result is not None and files.result["ended"] in STOPPED_EARLY


def spending_of(files: RunFiles, plan: PlannedSpending) -> RunCost:
    """What a run is charged.

    Raises:
        LedgerError: its files are altered or incomplete.
        PrivacyError: it ended early, and the rest of its plan, which it is charged for, is not known.
    """
    refuse(findings(files))
    header, name = files.ledger.header, str(files.folder)
    records = list(files.ledger.records)
    if ended_early(files):
        if plan.rest is None:
            raise PrivacyError(
                f"{name} ended early, so it is charged for its whole plan, which is not in its folder: restore its "
                "config.yaml, allow its plugins (--allow-plugins), or use fedpriv.total with the results in Python"
            )
        records += plan.rest
    if header.n_clients is None:
        raise PrivacyError(f"{name} holds the ledger of an early format that does not say how many clients there are")
    if files.result is None:
        covered = ()
    else:
        covered = tuple(files.result["not_covered"])
    return RunCost(name, records, header.n_clients, _data(files), plan.sizes, covered, _noise(files))


def _data(files: RunFiles) -> str | None:
    """What the clients' examples follow from."""
    config = files.config or {}
    if "data" in config:
        parts = [config["data"], config.get("problem")]
    else:
        parts = None
    if parts is None:
        return None
    return json.dumps(parts, sort_keys=True, default=str)


def _noise(files: RunFiles) -> str:
    """What its noise follows from, as far as is known; a ledger's last hash is its own."""
    saved, folder = files.checkpoint, str(files.folder.resolve())
    if saved is None:
        return files.ledger.head(len(files.ledger.texts)) or folder
    return saved.randomness().streams_name()
