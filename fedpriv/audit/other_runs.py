"""Check 8: other runs on the same data, and what they cost together; and runs that share their noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import torch

from fedpriv.audit.finding import Finding, judged
from fedpriv.audit.subject import Data, Subject
from fedpriv.errors import FedprivError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import up
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.run_files import config_in

NAME = "other runs"


@dataclass(frozen=True)
class _Run:
    """What another run says of itself."""

    folder: Path
    data: object
    ledger: LedgerFile
    noise: tuple[str, str, int] | None  # secret seed, settings and attempt, from which its noise follows

    @property
    def records(self) -> Sequence[Record]:
        return self.ledger.records


def other_runs(subject: Subject, data: Data) -> Finding:
    """Look for runs on the same data, and for the same noise, under the folder of runs."""
    if subject.runs is None:
        return Finding(
            NAME, "held", "no folder of runs was named: there are no others here", "of runs elsewhere nothing is seen"
        )
    runs, unread = list[_Run](), list[str]()
    for path in sorted(subject.runs.rglob("ledger.jsonl")):
        try:
            runs.append(_read(path.parent))
        except FedprivError as error:
            unread.append(str(error))
    runs = _without_copies(runs)
    own = next((run for run in runs if subject.folder is not None and run.folder.samefile(subject.folder)), None)
    wanted = subject.data_name if own is None else own.data
    same = [run for run in runs if run is not own and run.data == wanted and wanted is not None]
    broken = [*_summed(subject, own, same), *_shared_noise(runs)]
    if unread and not broken:
        return Finding(NAME, "not checked", f"{len(unread)} runs cannot be read: {unread[0]}")
    held = f"none of {len(runs)} runs under {subject.runs} is another one on the same data, and none share noise"
    power = (
        "data are the same where config.yaml names the same data and files; copies of the data elsewhere are not seen"
    )
    return judged(NAME, broken, held, power, others=len(same))


def _without_copies(runs: Sequence[_Run]) -> list[_Run]:
    """Each run once: copies of a folder have the same last hash."""
    known = dict[str, _Run]()
    for run in runs:
        head = run.ledger.head(len(run.ledger.texts)) if not run.ledger.altered else None
        known.setdefault(head or str(run.folder), run)
    return list(known.values())


def _read(folder: Path) -> _Run:
    checkpoint, config = folder / "checkpoint.pt", config_in(folder)
    saved = Checkpoint.load(checkpoint, torch.device("meta")) if checkpoint.exists() else None
    noise = None if saved is None else (saved.secret_seed, saved.run, saved.attempt)
    return _Run(folder, named_data(config), LedgerFile.read(folder / "ledger.jsonl"), noise)


def named_data(config: dict[str, Any] | None) -> object:
    """The name of a configuration's data, and the files that it names; None if it names none.

    Other options, such as a seed of the split or transforms, leave the people the same.
    """
    found = (config or {}).get("data")
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in cast("dict[str, Any]", found).items() if isinstance(value, str)}


def _summed(subject: Subject, own: _Run | None, same: Sequence[_Run]) -> Iterator[str]:
    if not same:
        return
    plan = subject.plan()
    records = [plan.records if own is None else own.records, *(run.records for run in same)]
    folders = ", ".join(str(run.folder) for run in same)
    alone = account(records[0], plan.n_clients, plan.privacy.delta)
    known = all(run.ledger.header.n_clients == plan.n_clients for run in same)
    try:
        if not known:
            raise FedprivError("other clients")
        joint = account([record for part in records for record in part], plan.n_clients, plan.privacy.delta)
        together, how = joint.epsilon, f"epsilon={up(joint.epsilon)} at delta={joint.delta:g}, composed"
    except FedprivError:  # other clients, another unit, or noise over time: each by itself, added up
        parts = [alone, *(_alone(run) for run in same)]
        together, deltas = sum(part.epsilon for part in parts), sum(part.delta for part in parts)
        how = f"epsilon={up(together)} at delta={deltas:g}, added up"
    if together > alone.epsilon or math.isinf(together):
        yield f"{len(same)} other runs have the same data ({folders}): together {how}, not {up(alone.epsilon)}"


def _alone(run: _Run) -> Any:  # noqa: ANN401 - `Spent`
    header = run.ledger.header
    if header.n_clients is None or header.delta is None:
        raise FedprivError(f"{run.ledger.path} does not say for how many clients and which delta it is")
    return account(run.records, header.n_clients, header.delta)


def _shared_noise(runs: Sequence[_Run]) -> Iterator[str]:
    """Runs of one seed and one setting."""
    for one, other in combinations(runs, 2):
        if one.noise is not None and one.noise == other.noise:
            same = f"{one.folder} and {other.folder} have the same secret seed and settings, and so the same noise"
            yield f"{same}: the difference of their answers has none"
