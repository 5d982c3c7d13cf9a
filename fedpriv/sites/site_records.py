"""The files of a site's federations: plans, ledgers and the state between rounds. None may be missing.

A site computes its spending from these files when it starts; its statement does so while the site is running.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from fedpriv.errors import FedprivError, LedgerError, format_count
from fedpriv.privacy import LedgerFile
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.storage import files

PLAN = "plan.yaml"
STATE = "state.pt"
LEDGER = "ledger.jsonl"
PLANS = "plans.json"  # hashes of all accepted plans, so that a removed one is noticed
NOTICES = "notices.json"
NODE_STATE = "node.pt"  # state of the site's node, under a plan on a graph
NODE_LINKS = "link-{}.pt"  # the last round of a link, by the neighbour's number
ROLLBACK = "rolled_back.json"  # a counter that this site has signed and that exceeds its files


class RolledBack(LedgerError):
    """Raised for a site's folder that was restored from an older copy: the site's spending is unknown."""


@dataclass(frozen=True)
class SessionState:
    """The state of a site in one federation between rounds, which is as private as the site's data.

    Attributes:
        round: The last round that the site answered; -1 before the first.
        question: Digest of the request of that round.
        reply: The reply to it, which is sent again if the request is repeated.
        local: State of its client update by name; None before the first round.
        records: Number of records in its ledger.
    """

    round: int = -1
    question: str = ""
    reply: bytes = b""
    local: dict[str, Any] | None = None
    records: int = 0

    def dumps(self) -> bytes:
        """Returns the content of the state's file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.reply:  # torch cannot read an empty one back
            del values["reply"]
        content = io.BytesIO()
        torch.save(values, content)
        return content.getvalue()

    @classmethod
    def read(cls, path: Path) -> SessionState:
        """Reads the state of a federation; without a file, this is the state before the first round.

        Raises:
            FedprivError: If it cannot be read.
        """
        if not path.exists():
            return cls()
        try:
            return cls(**torch.load(io.BytesIO(files.read(path)), weights_only=True))
        except (RuntimeError, LookupError, AttributeError, TypeError, ValueError, EOFError, UnpicklingError) as error:
            raise FedprivError(
                f"{path} cannot be read, so this site cannot continue in that plan: restore the file, or join a new "
                "plan"
            ) from error


def erase_state(plan_folder: Path) -> None:
    """Erases all that a site or its node needs to continue in a plan: private state, replies, neighbours' rows.

    Plan, ledger, notices and counters stay, and with them statement, lifetime budget and detection of older copies.

    Args:
        plan_folder: The folder of the plan, inside the site's folder.

    Raises:
        FedprivError: If the state cannot be read.
        OSError: If a file cannot be written.
    """
    path = plan_folder / STATE
    if path.exists():
        files.erase(path, SessionState(records=SessionState.read(path).records).dumps())
    for node_file in (plan_folder / NODE_STATE, *plan_folder.glob(NODE_LINKS.format("*"))):
        if node_file.exists():
            files.erase(node_file)


def list_plan_files(folder: Path) -> Sequence[Path]:
    """Returns the files of all plans that a site has accepted; each is next to the ledger of its federation.

    Args:
        folder: The site's folder.

    Raises:
        LedgerError: If a plan is missing, or the folder is an old copy, so that the site's spending is unknown.
    """
    check_rollback(folder)
    plans = {path.parent.name: path for path in sorted((folder / "runs").glob(f"*/{PLAN}"))}
    for plan_hash in list_accepted_hashes(folder):
        if plan_hash not in plans:
            raise LedgerError(
                f"{folder / 'runs' / plan_hash} is missing or has lost its plan, so this site's privacy cost is "
                "unknown: restore this folder. Keep finished plans too, because they count towards the site's "
                "lifetime budget"
            )
    return [*plans.values()]


def read_plan_ledger(plan_file: Path) -> LedgerFile:
    """Returns the ledger of a federation after checking that no line is missing.

    Args:
        plan_file: One of `list_plan_files`.

    Raises:
        LedgerError: If the ledger is missing, lost lines of rounds with a reply, or is damaged or altered.
    """
    n_replied = SessionState.read(plan_file.with_name(STATE)).records  # before the ledger, which may grow meanwhile
    path = plan_file.with_name(LEDGER)
    if not path.exists():
        raise LedgerError(
            f"{path}, the ledger of an accepted plan, is missing, so this site's privacy cost is unknown. Restore the "
            "file; until then the site replies under no plan"
        )
    ledger = LedgerFile.read(path)
    count = len(ledger.records)
    if count < n_replied:
        raise LedgerError(
            f"{path} has {format_count(count, 'record')}, but the site's replies contained {n_replied}: part of the "
            "ledger is lost, so this site's privacy cost is unknown. Restore the file; until then the site replies "
            "under no plan"
        )
    return ledger


def check_rollback(folder: Path) -> None:
    """Raises an error for a site's folder with a smaller reply counter than one that the site has signed.

    The folder is rejected until the newest copy is restored, which has no such proof or the records that it names.

    Raises:
        RolledBack: If the folder is an older copy.
        LedgerError: If the proof cannot be read.
    """
    path = folder / ROLLBACK
    if not path.exists():
        return
    try:
        counter = ReplyCounter.model_validate_json(files.read(path))
    except ValueError as error:
        raise LedgerError(f"{path} cannot be read, so this site's privacy cost is unknown: restore the file") from error
    run = folder / "runs" / counter.plan
    n_records = 0
    if (run / LEDGER).exists():
        n_records = len(LedgerFile.read(run / LEDGER).records)
    n_notices = len(read_notices(run / NOTICES))
    if counter.exceeds(n_records, n_notices):
        raise RolledBack(
            f"{folder} is an older copy of the site: the site has signed {format_count(counter.records, 'record')} and "
            f"{format_count(counter.notices, 'notice')} of plan {counter.plan[:32]}, but this folder contains "
            f"{format_count(n_records, 'record')} and {format_count(n_notices, 'notice')}. The site's privacy cost is "
            "unknown, so it does not reply: restore the newest copy. If that copy is lost, this site cannot be used "
            "again, and the budget of a new site must exclude everything that this site may have spent"
        )


def read_notices(path: Path) -> list[AbsenceNotice]:
    """Reads a site's absence notices in a federation; returns none if there is no file.

    Raises:
        FedprivError: If they cannot be read.
    """
    if not path.exists():
        return []
    try:
        return [AbsenceNotice.model_validate(notice) for notice in json.loads(files.read(path))]
    except (ValueError, TypeError) as error:
        raise FedprivError(
            f"{path} cannot be read, so this site cannot continue in that plan: restore the file, or join a new plan"
        ) from error


def list_accepted_hashes(folder: Path) -> Sequence[str]:
    """Returns the hashes of all plans that a site has accepted, from its list of plans.

    Raises:
        LedgerError: If the list cannot be read.
    """
    path = folder / PLANS
    if not path.exists():
        return []
    try:
        return [str(plan_hash) for plan_hash in json.loads(files.read(path))]
    except (ValueError, TypeError) as error:
        raise LedgerError(f"{path} cannot be read, so plans of this site may be missing: restore the file") from error
