"""The file of a lifetime budget: its terms, then one line for each change, each with a hash of all lines before it.

A line is in the file, and on the physical disk, before the change counts; a last line that is cut off never counted.
Beside the file lie a lock, and a small file `FILE.head` that says how far the budget had come: a copy of an earlier
state that is put back without it is refused.
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
from fedpriv.privacy.chain import START, chained, unchained
from fedpriv.privacy.record import Relation, Unit
from fedpriv.storage import files

_FORMAT = 1
_PATIENCE = 120.0  # seconds that another process may price its run
_RESTORE = "restore its newest copy"
_STRICT = ConfigDict(extra="forbid", strict=True)
_Text = Annotated[str, Field(max_length=1000)]
_Law = Literal["gaussian", "laplace", "zcdp", "none"]
_Selection = Literal["full", "poisson", "poisson_replace", "amplified", "allocation", "allocation_replace"]
_Noise = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
_Rate = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=1)]
_Event = tuple[_Law, _Noise, _Selection, _Rate, _Count]
Charges = list[tuple[str | list[int] | None, list[_Event], _Count]]
"""Charges as JSON has them: clients (all, or packed), what each of them pays, and how often."""


@strict(frozen=True, config=_STRICT)
class BudgetTerms:
    """The first line: what is promised.

    Attributes:
        epsilon: Most that all runs together may cost.
        delta: At this delta.
        unit: What is protected.
        relation: Which data sets are neighbours.
        shared: What else neighbours may have in common, as printed behind `relation`.
        data: Name of the data set that all runs use.
        accountant: The one bound by which runs are priced; None takes the smallest.
        id: Random: budgets of equal terms are different ones.
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
    """A run's whole plan, or the rest of it for a resume with fresh noise.

    Attributes:
        reserve: Public name of the noise that the run draws.
        run: What the run is called, e.g. its folder.
        time: When, in UTC.
        n_clients: Number of clients.
        trust: Who is trusted, as printed.
        data: Text that is the same for runs whose clients hold the same examples; None if that is not known.
        charges: What is released, as `to_plain` writes it.
    """

    reserve: _Text
    run: _Text
    time: _Text
    n_clients: Annotated[int, Field(ge=1, le=10**6)]
    trust: _Text
    data: _Text | None
    charges: Charges


@strict(frozen=True, config=_STRICT)
class Closed:
    """A run has ended.

    Attributes:
        close: The name under which it had reserved.
        ended: Why, as in its result.
        time: When, in UTC.
        charges: What it really released, where the rest is given back; None if all that it reserved is charged.
    """

    close: _Text
    ended: _Text
    time: _Text
    charges: Charges | None


_TERMS, _CHANGE = TypeAdapter(BudgetTerms), TypeAdapter[Reserved | Closed](Reserved | Closed)


@dataclass(frozen=True)
class BudgetLines:
    """The complete lines of a budget file.

    Attributes:
        terms: The first line.
        changes: The other ones.
        chain: Hash of the last line.
        size: Number of bytes of the complete lines.
    """

    terms: BudgetTerms
    changes: tuple[Reserved | Closed, ...]
    chain: str
    size: int

    @staticmethod
    def read(path: Path) -> BudgetLines:
        """Read a budget file.

        Raises:
            LedgerError: it is missing, damaged or altered, or an earlier state of it was put back.
        """
        seen = _seen(path)  # first: a line that is added meanwhile is more than was seen
        try:
            *lines, _ = files.read(path).split(b"\n")
        except FileNotFoundError as error:
            fix = f"make it once for each data set: fedpriv budget {path} --epsilon E --delta D"
            raise LedgerError(f"the budget {path} does not exist; {fix}") from error
        chains, texts = [START], list[bytes]()
        for number, line in enumerate(lines, start=1):
            found = unchained(line, chains[-1])
            if found is None:
                raise LedgerError(f"{path}, line {number} does not follow from what comes before it; {_RESTORE}")
            texts.append(found[0])
            chains.append(found[1])
        count, chain = seen or (0, START)
        if count >= len(chains) or chains[count] != chain:
            said = f"its file {_head_of(path).name} has seen {count} lines of it, which it does not hold"
            raise LedgerError(f"{path} is an earlier copy of the budget, or another one: {said}; {_RESTORE}")
        if not texts:
            raise LedgerError(f"{path} is no budget: it has no terms; {_RESTORE}")
        try:
            changes = tuple(_CHANGE.validate_json(text) for text in texts[1:])
            found = BudgetLines(_TERMS.validate_json(texts[0]), changes, chains[-1], sum(map(len, lines)) + len(lines))
            found.check()
        except ValueError as error:
            raise LedgerError(f"{path} is no budget that this fedpriv can read; {_RESTORE}") from error
        return found

    def check(self) -> None:
        """Refuse changes that no budget makes.

        Raises:
            ValueError: two runs with one name, or an end of a run that had not begun, or a second one.
        """
        begun, over = set[str](), set[str]()
        for change in self.changes:
            if isinstance(change, Reserved):
                name, known = change.reserve, begun
            else:
                name, known = change.close, over
            if name in known or (known is over and name not in begun):
                raise ValueError(name)
            known.add(name)
            if change.charges is not None:
                from_plain(change.charges)


def write_new(path: Path, terms: BudgetTerms) -> None:
    """Begin a budget; the file must not exist.

    Raises:
        LedgerError: it exists, or cannot be written.
    """
    text, chain = chained(_canonical(terms), START)
    with locked(path):
        if os.path.lexists(path):
            raise LedgerError(f"{path} exists; look at it with: fedpriv budget {path}")
        if _seen(path) is not None:
            said = f"{_head_of(path).name} says that there was a budget of this name"
            raise LedgerError(f"{path} is missing, and {said}; {_RESTORE}, or choose another name")
        try:
            files.write_whole(path, text.encode() + b"\n")
            files.write_whole(_head_of(path), _mark(1, chain))
        except OSError as error:
            raise _not_written(path, error) from error


def add(path: Path, lines: BudgetLines, change: Reserved | Closed) -> None:
    """Write one more line; returns when it is on the physical disk. Call it within `locked`.

    Raises:
        LedgerError: it cannot be written, and does not count.
    """
    text, chain = chained(_canonical(change), lines.chain)
    try:
        file = files.Appender(path, keep=lines.size)
        file.append(text.encode() + b"\n")
        file.sync()
        files.write_whole(_head_of(path), _mark(len(lines.changes) + 2, chain))
    except OSError as error:
        raise _not_written(path, error) from error


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Be the only process that changes this budget.

    Raises:
        FedprivError: another one has it for minutes, or it cannot be locked.
    """
    name = path.with_name(f".{path.name}.lock")
    lock = FileLock(name, mode=0o600, thread_local=False, fallback_to_soft=False, timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise FedprivError(f"{path} is being changed by another process; wait until it is done") from None
    except OSError as error:
        raise FedprivError(f"{path} cannot be locked ({error.strerror}); put it where files can be locked") from error
    try:
        yield
    finally:
        lock.release()


def to_plain(charges: Mapping[PrivacyCost, int]) -> Charges:
    """Charges as they are written; infinite noise is null."""
    return [(_clients(charge), [_written(event) for event in charge.events], n) for charge, n in charges.items()]


def from_plain(told: Charges) -> Counter[PrivacyCost]:
    """Charges that `to_plain` wrote.

    Raises:
        ValueError: a packed list is none.
    """
    found: Counter[PrivacyCost] = Counter()
    for clients, events, count in told:
        if isinstance(clients, str):
            known = packing.unpacked_clients(clients)
        else:
            known = clients
        read = tuple(
            Event(law, math.inf if noise is None else noise, selection, rate, group)
            for law, noise, selection, rate, group in events
        )
        found[PrivacyCost(None if known is None else tuple(known), read)] += count
    return found


def _clients(charge: PrivacyCost) -> str | list[int] | None:
    packed: Any = packing.packed_clients(charge.clients)
    if isinstance(packed, tuple):
        return list(packed)
    return packed


def _written(event: Event) -> _Event:
    if math.isinf(event.noise):
        noise = None
    else:
        noise = event.noise
    return event.law, noise, event.selection, event.rate, event.group


def _canonical(value: Any) -> str:  # noqa: ANN401 - any of the lines
    return json.dumps(asdict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _head_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def _mark(count: int, chain: str) -> bytes:
    return json.dumps({"lines": count, "chain": chain}).encode() + b"\n"


def _seen(path: Path) -> tuple[int, str] | None:
    """How many lines the budget had, and the hash of the last one; None if nothing says so."""
    head = _head_of(path)
    try:
        told = json.loads(files.read(head))
        return int(told["lines"]), str(told["chain"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{head} is damaged; restore it, or delete it if {path} is the newest copy") from error


def _not_written(path: Path, error: OSError) -> LedgerError:
    return LedgerError(f"{path} could not be written ({error.strerror}); free some space and start again")
