"""The file of a lifetime budget: its terms, then one line for each change, each with a hash of all lines before it.

A change is valid once its line is in the file and on the physical disk. An incomplete last line was never valid. Next
to the file are a lock and a small file `FILE.head`, which contains the number of lines and the hash of the last line.
With it, a restored copy of an earlier state is detected and rejected. A file `FILE.marks` contains, for each run, the
number of rounds that may have been released (`RunMark`).
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as strict

from fedpriv.errors import FedprivError, LedgerError
from fedpriv.privacy import packing
from fedpriv.privacy.accounting.events import Event, PrivacyCost
from fedpriv.privacy.chain import START, add_chained_line, read_chained_line
from fedpriv.privacy.record import Relation, Unit
from fedpriv.storage import files

_FORMAT = 1
_PATIENCE = 120.0  # seconds that another process may price its run
_RESTORE = "restore the newest copy of this file"
_STRICT = ConfigDict(extra="forbid", strict=True)
_Text = Annotated[str, Field(max_length=1000)]
_Law = Literal["gaussian", "laplace", "zcdp", "none"]
_Selection = Literal["full", "poisson", "poisson_replace", "amplified", "allocation", "allocation_replace"]
_Noise = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
_Rate = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=1)]
_Event = tuple[_Law, _Noise, _Selection, _Rate, _Count]
Charges = list[tuple[str | list[int] | None, list[_Event], _Count]]
"""Costs in the form of JSON: the clients (all, or a packed list), their events, and the number of times that each event
occurs.
"""


@strict(frozen=True, config=_STRICT)
class BudgetTerms:
    """The first line of a budget file: the guarantee for all runs together.

    Attributes:
        epsilon: Largest epsilon that all runs together may cost.
        delta: Delta of that epsilon.
        unit: Privacy unit.
        relation: Neighbouring relation.
        shared: Further facts that neighbours may have in common, as printed after `relation`.
        data: Name of the data set of all runs.
        accountant: The bound by which the cost of runs is computed; None uses the smallest.
        id: Random number that distinguishes budgets with equal terms.
        fedpriv_budget: Number of the file format.
    """

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    unit: Unit
    relation: Relation
    shared: _Text
    data: _Text
    accountant: Annotated[str, Field(pattern="^(gaussian|pld|rdp|pure)$")] | None
    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    fedpriv_budget: Literal[1] = _FORMAT


@strict(frozen=True, config=_STRICT)
class Reserved:
    """A reservation: a run's whole plan.

    Attributes:
        reserve: Random name of the run.
        run: Name of the run, e.g. its folder.
        time: Time of the reservation, in UTC.
        n_clients: Number of clients.
        trust: The trust assumption, as printed.
        data: Text that is equal for runs with the same examples at the same clients; None if it is not known.
        charges: The costs of the releases, as `to_plain` writes them.
        float64_noise: Noise that the run adds in float64, in words (`fedpriv.privacy.float64_noise`); None in a line
            that version 0.2 wrote, which did not record it.
    """

    reserve: _Text
    run: _Text
    time: _Text
    n_clients: Annotated[int, Field(ge=1, le=10**6)]
    trust: _Text
    data: _Text | None
    charges: Charges
    float64_noise: tuple[_Text, ...] | None = None


@strict(frozen=True, config=_STRICT)
class Closed:
    """The end of a run.

    Attributes:
        close: Name of the run, as in its reservation.
        ended: Reason for the end of the run, as in its result.
        time: Time of the end, in UTC.
        charges: The costs of the actual releases, if the rest of the reservation was returned. None if the whole
            reservation stays spent.
    """

    close: _Text
    ended: _Text
    time: _Text
    charges: Charges | None


@strict(frozen=True, config=_STRICT)
class RunMark:
    """The rounds that a run may have released, recorded by the newest process that trains it.

    Attributes:
        start: Random name of this process.
        rounds: Number of rounds, from round 0, that this process or an earlier one may have released.
    """

    start: _Text
    rounds: Annotated[int, Field(ge=0)]


_MARKS = TypeAdapter(dict[str, RunMark])
_TERMS, _CHANGE = TypeAdapter(BudgetTerms), TypeAdapter[Reserved | Closed](Reserved | Closed)


@dataclass(frozen=True)
class BudgetLines:
    """The complete lines of a budget file.

    Attributes:
        terms: The first line.
        changes: The other lines.
        chain: Hash of the last line.
        size: Number of bytes of the complete lines.
    """

    terms: BudgetTerms
    changes: tuple[Reserved | Closed, ...]
    chain: str
    size: int

    @staticmethod
    def read(path: Path) -> BudgetLines:
        """Reads a budget file.

        Raises:
            LedgerError: If the file is missing, damaged or altered, or an earlier copy of it was restored.
        """
        # before the file: a line that another process adds in between must not look as if it were missing
        head = _read_head(path)
        try:
            *lines, _ = files.read(path).split(b"\n")
        except FileNotFoundError as error:
            fix = f"create it once per data set: fedpriv budget {path} --epsilon E --delta D"
            raise LedgerError(f"the budget {path} does not exist; {fix}") from error
        chains = [START]
        texts = list[bytes]()
        for number, line in enumerate(lines, start=1):
            text_and_chain = read_chained_line(line, chains[-1])
            if text_and_chain is None:
                raise LedgerError(f"{path}, line {number} was altered, or lines before it are missing; {_RESTORE}")
            text, chain = text_and_chain
            texts.append(text)
            chains.append(chain)

        head_count, head_chain = head or (0, START)
        if head_count >= len(chains) or chains[head_count] != head_chain:
            reason = f"{_head_path(path).name} records {head_count} lines, which this file does not contain"
            raise LedgerError(f"{path} is an earlier copy of the budget, or another budget: {reason}; {_RESTORE}")
        if not texts:
            raise LedgerError(f"{path} is not a budget: it does not state an epsilon and a delta; {_RESTORE}")
        try:
            terms = _TERMS.validate_json(texts[0])
            changes = tuple(_CHANGE.validate_json(text) for text in texts[1:])
            size = sum(len(line) + 1 for line in lines)  # with the line breaks
            budget = BudgetLines(terms, changes, chains[-1], size)
            budget.check()
        except ValueError as error:
            raise LedgerError(
                f"{path} is not a budget that this version of fedpriv can read; use the version that wrote it, or "
                f"{_RESTORE}"
            ) from error
        return budget

    def check(self) -> None:
        """Raises an error for changes that fedpriv never writes.

        Raises:
            ValueError: If two runs have one name, or a run ends without having begun, or ends twice.
        """
        begun = set[str]()
        ended = set[str]()
        for change in self.changes:
            if isinstance(change, Reserved):
                if change.reserve in begun:
                    raise ValueError(change.reserve)
                begun.add(change.reserve)
            else:
                if change.close in ended or change.close not in begun:
                    raise ValueError(change.close)
                ended.add(change.close)
            # raises ValueError where a packed list is damaged
            if change.charges is not None:
                from_plain(change.charges)


def write_new(path: Path, terms: BudgetTerms) -> None:
    """Writes a new budget file with its terms.

    Raises:
        LedgerError: If the file exists already, or cannot be written.
    """
    text, chain = add_chained_line(_canonical(terms), START)
    with lock_budget(path):
        if os.path.lexists(path):
            raise LedgerError(f"{path} already exists; print it with: fedpriv budget {path}")
        if _read_head(path) is not None:
            reason = f"{_head_path(path).name} shows that a budget of this name existed"
            raise LedgerError(f"{path} is missing, but {reason}; {_RESTORE}, or choose another name")
        try:
            files.write_whole(path, text.encode() + b"\n")
            files.write_whole(_head_path(path), _head_line(1, chain))
        except OSError as error:
            raise _write_error(path, error) from error


def add(path: Path, lines: BudgetLines, change: Reserved | Closed) -> None:
    """Appends a line. When it returns, the line is on the physical disk. Call it within `lock_budget`.

    Raises:
        LedgerError: If the line cannot be written; the line is then not valid.
    """
    text, chain = add_chained_line(_canonical(change), lines.chain)
    try:
        file = files.Appender(path, keep=lines.size)
        file.append(text.encode() + b"\n")
        file.sync()
        files.write_whole(_head_path(path), _head_line(len(lines.changes) + 2, chain))
    except OSError as error:
        raise _write_error(path, error) from error


def read_mark(path: Path, run: str) -> RunMark | None:
    """Returns the mark of a run (the rounds that it may have released); None for a run that has not begun.

    Raises:
        LedgerError: If the file is damaged.
    """
    return _read_marks(path).get(run)


def write_mark(path: Path, run: str, mark: RunMark) -> None:
    """Writes the mark of a run. When it returns, the mark is on the physical disk. Call it within `lock_budget`.

    Raises:
        LedgerError: If the file cannot be written.
    """
    marks = {name: asdict(each) for name, each in (_read_marks(path) | {run: mark}).items()}
    try:
        files.write_whole(_marks_path(path), json.dumps(marks, indent=1).encode() + b"\n")
    except OSError as error:
        raise _write_error(path, error) from error


def _read_marks(path: Path) -> dict[str, RunMark]:
    try:
        return _MARKS.validate_json(files.read(_marks_path(path)))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LedgerError(
            f"{_marks_path(path)} is damaged; restore this file and the budget from the same copy"
        ) from error


def _marks_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.marks")


@contextmanager
def lock_budget(path: Path) -> Generator[None]:
    """Locks a budget, so that no other process changes it.

    Raises:
        FedprivError: If another process has held the lock for minutes, or the file system has no locks.
    """
    name = path.with_name(f".{path.name}.lock")
    lock = FileLock(name, mode=0o600, thread_local=False, fallback_to_soft=False, timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise FedprivError(f"{path} is being changed by another process; wait until it has finished") from None
    except OSError as error:
        raise FedprivError(
            f"{path} cannot be locked ({error.strerror}); put it on a file system with file locks"
        ) from error
    try:
        yield
    finally:
        lock.release()


def to_plain(charges: Mapping[PrivacyCost, int]) -> Charges:
    """Returns costs in the form in which they are written to the file; infinite noise is null."""
    return [(_clients(charge), [_plain_event(event) for event in charge.events], n) for charge, n in charges.items()]


def from_plain(charges: Charges) -> Counter[PrivacyCost]:
    """Reads charges that `to_plain` wrote.

    Raises:
        ValueError: If a packed list of clients is damaged.
    """
    counts: Counter[PrivacyCost] = Counter()
    for clients, events, count in charges:
        if isinstance(clients, str):
            members = packing.unpack_clients(clients)
        else:
            members = clients
        priced = tuple(
            Event(law, math.inf if noise is None else noise, selection, rate, group)
            for law, noise, selection, rate, group in events
        )
        counts[PrivacyCost(None if members is None else tuple(members), priced)] += count
    return counts


def _clients(charge: PrivacyCost) -> str | list[int] | None:
    packed: Any = packing.pack_clients(charge.clients)
    if isinstance(packed, tuple):
        return list(packed)
    return packed


def _plain_event(event: Event) -> _Event:
    if math.isinf(event.noise):
        noise = None
    else:
        noise = event.noise
    return event.law, noise, event.selection, event.rate, event.group


def _canonical(value: Any) -> str:  # noqa: ANN401 - any of the lines
    return json.dumps(asdict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _head_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def _head_line(count: int, chain: str) -> bytes:
    return json.dumps({"lines": count, "chain": chain}).encode() + b"\n"


def _read_head(path: Path) -> tuple[int, str] | None:
    """Returns the number of lines and the hash of the last line, from the `.head` file; None without this file."""
    head = _head_path(path)
    try:
        content = json.loads(files.read(head))
        return int(content["lines"]), str(content["chain"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{head} is damaged; restore it, or delete it if {path} is the newest copy") from error


def _write_error(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path} could not be written ({error.strerror}); correct the cause, e.g. free some space, and start again"
    )
