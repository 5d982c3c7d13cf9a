"""The ledger contains one record for every release. A record is written before the released value is returned.

`Ledger.open` is the only way to read the tensor inside a `Release`. A line of JSON is appended to the file before a
value is returned. So after a crash the ledger may count a release that was not made, but never misses one. After a
power cut this holds only for lines written before the last `Ledger.sync`. Therefore call `sync` before a value, or
anything computed from it, leaves the process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedpriv.errors import LedgerError, PrivacyError
from fedpriv.privacy.chain import START, add_chained_line
from fedpriv.privacy.ledger_file import FORMAT, LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.storage import files

NoiseLabel = tuple[int, int, int]
VOID = "void"
"""The query of a record which states that no bound on epsilon holds for this ledger."""


def _noise_labels(record: Record) -> set[NoiseLabel]:
    """Returns the (round, index, attempt) that identify a record's noise; the empty set for a release without noise.

    The clients are not a part of the label, because a sum has the same noise for every cohort. With a secret cohort,
    the index is not a part of it either, because there is one release in each round.
    """
    if record.mechanism == "none" or record.non_private is not None:
        return set()
    cohort_is_secret = record.unit == "client" and record.sampling in ("poisson", "allocation")
    if cohort_is_secret:
        index = -1
    else:
        index = record.index
    return {(record.round, index, record.attempt)}


@dataclass(frozen=True)
class Release:
    """A noised value with its record. Only a ledger can return the value; see `Ledger.open`."""

    record: Record
    _value: Tensor


class LedgerPosition(NamedTuple):
    """A position in a ledger: its number of records, and the `chain` hash of its last line (None without a chain)."""

    releases: int
    head: str | None


class PrivacyFilter(Protocol):
    """Counts releases, and may reject a release before it is made."""

    def admit(self, record: Record) -> None:
        """Counts a release that is about to be made, or raises a `PrivacyError` and counts nothing."""
        ...

    def count(self, record: Record) -> None:
        """Counts a recorded release that was made before; it is never rejected."""
        ...


class LedgerSync(Protocol):
    """Synchronises the processes of a run. All processes open every release together, and one of them writes the
    record.
    """

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """Lets one process write the record, and returns in all processes once the record is written.

        Args:
            record: The record.
            write: Writes a record; called in one process alone.

        Raises:
            BudgetExhausted: If the release would exceed the limit.
            PrivacyError: If the release is not allowed, or not the same in all processes.
        """
        ...


class SingleWriter:
    """The `LedgerSync` of a run with a single process, which writes every record itself."""

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """See `LedgerSync`."""
        write(record)


def _any_writer_may() -> None:
    """Default of `Ledger.may_write`, for a file that no other run can take over."""


class Ledger:
    """Append-only list of releases.

    Guarantee: each planned release is made at most once, in this process or after a resume, because the ledger rejects
    a second release with the same round, index and label.

    Args:
        guard: Counts every record, and rejects a release that may not be made.
        path: File to append to; None keeps the ledger in memory.
        header: Public facts of the run, written as the first line of the file.

    Attributes:
        may_write: Called before a record is written; it raises an error if another run has taken over the file.
        together: Synchronises the processes that open releases with this one.

    Raises:
        LedgerError: If the file exists (use `Ledger.resume`) or cannot be written.
    """

    def __init__(
        self,
        guard: PrivacyFilter,
        path: Path | None = None,
        header: dict[str, Any] | None = None,
    ) -> None:
        self._guard = guard
        self.may_write = _any_writer_may
        self.together: LedgerSync = SingleWriter()
        self._path = path
        self._file = None
        self._head: str | None = None  # the `chain` of the last line
        self._records: list[Record] = []
        self._noises: set[NoiseLabel] = set()
        if path is not None:
            if path.exists():
                fix = "use another folder, or resume=True to resume that run"
                raise LedgerError(f"{path} is the ledger of another run: {fix}")
            header_text = json.dumps({"fedpriv_ledger": FORMAT, **(header or {})}, allow_nan=False)
            line, self._head = add_chained_line(header_text, START)
            try:
                files.write_whole(path, line.encode() + b"\n")
                self._file = files.Appender(path)
            except OSError as error:
                raise _write_error(path, error) from error

    @property
    def records(self) -> Sequence[Record]:
        """The records of all releases so far, in order."""
        return self._records

    @property
    def mark(self) -> LedgerPosition:
        """The current position, as checkpoints store it."""
        return LedgerPosition(len(self._records), self._head)

    @property
    def next_round(self) -> int:
        """The round after the last round with records."""
        return max((record.round for record in self._records), default=-1) + 1

    @property
    def is_void(self) -> bool:
        """True if a record states that no bound on epsilon holds."""
        return any(record.query == VOID for record in self._records)

    def open(self, release: Release) -> Tensor:
        """Writes the record, then returns the value.

        Raises:
            BudgetExhausted: If the release would exceed the limit; nothing is written or returned.
            PrivacyError: If the same release was made before.
            LedgerError: If the record could not be written.
        """
        self.together.enter(release.record, self._write_record)
        return release._value

    def begin_with(self, records: Sequence[Record]) -> None:
        """Counts and writes the records of an earlier run, which this run extends. For a new ledger only.

        Raises:
            LedgerError: If this ledger has records already, or a record could not be written.
        """
        if self._records:
            raise LedgerError(
                "the releases of the earlier run must come first, but this ledger already contains others: use a new "
                "ledger"
            )
        self.note(records)

    def note(self, records: Sequence[Record]) -> None:
        """Counts and writes releases that were made, or may have been made, in a copy of the folder.

        Raises:
            LedgerError: If a record could not be written.
        """
        for record in records:
            self._write_record(record, self._guard.count)
        self.sync()

    def _write_record(self, record: Record, allow: Callable[[Record], None] | None = None) -> None:
        """Writes a record, after the function `allow` has counted it. By default this function is the guard's `admit`,
        which may reject the record.
        """
        noises = _noise_labels(record)
        if noises & self._noises:
            raise _was_released(record)
        (allow or self._guard.admit)(record)
        if self._path is not None:
            self._append(record)
        self._records.append(record)
        self._noises |= noises

    def void(self, reason: str) -> None:
        """Records that no bound on epsilon holds for the releases; does nothing without releases.

        Args:
            reason: Reason why no bound holds, in words; it is reported as the reason for an infinite epsilon.

        Raises:
            LedgerError: If the record could not be written.
        """
        if not self._records:
            return
        last = self._records[-1]
        record = Record(
            round=last.round,
            query=VOID,
            index=last.index + 1,
            mechanism="none",
            noise_multiplier=0.0,
            unit=last.unit,
            relation=last.relation,
            norm=last.norm,
            bound=last.bound,
            shared=last.shared,
            trust=last.trust,
            non_private=reason,
            attempt=last.attempt,
        )
        self._write_record(record, self._guard.count)
        self.sync()

    def sync(self) -> None:
        """Waits until the records so far are on the physical disk (fsync), where they survive a power cut.

        Raises:
            LedgerError: If the records may not be on the disk. Then no value computed from these releases may leave the
                process.
        """
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                raise _write_error(self._path, error) from error

    def _append(self, record: Record) -> None:
        assert self._file is not None
        self.may_write()
        assert self._head is not None
        line, head = add_chained_line(record.to_json(), self._head)
        try:
            self._file.append(line.encode() + b"\n")
        except OSError as error:
            raise _write_error(self._path, error) from error
        self._head = head

    @staticmethod
    def resume(path: Path, guard: PrivacyFilter, keep: int) -> Ledger:
        """Opens the ledger of a stopped run. All records stay and count, including those after the checkpoint.

        Args:
            path: The ledger file.
            guard: A new filter; it counts every record of the file.
            keep: Number of records at the checkpoint.

        Raises:
            LedgerError: If the file is missing, damaged or altered, cannot be written, or holds fewer records than
                there were at the checkpoint.
        """
        file = LedgerFile.read(path)
        records = file.records
        if len(records) < keep:
            raise LedgerError(
                f"{path} has {len(records)} records, but the checkpoint counted {keep}: part of the ledger is "
                "lost, so the privacy cost is unknown. Restore the file; without it the run has no epsilon"
            )
        ledger = Ledger(guard)
        ledger._path = path
        try:
            # without a last line that is cut off
            ledger._file = files.Appender(path, keep=files.read(path).rfind(b"\n") + 1)
            ledger._file.sync()  # lines that a killed process wrote may not be on the disk itself
        except OSError as error:
            raise _write_error(path, error) from error
        ledger._records = list(records)
        ledger._head = file.head(len(records))
        ledger._noises = {noise for record in records for noise in _noise_labels(record)}
        for record in records:
            guard.count(record)
        return ledger


class FollowerLedger:
    """Opens releases in a process that does not write the ledger. It keeps no records.

    Args:
        together: Synchronises the processes of the run.
    """

    mark = LedgerPosition(0, None)

    def __init__(self, together: LedgerSync) -> None:
        self._together = together

    @property
    def records(self) -> Sequence[Record]:
        """Not available: only the process that writes the ledger has records.

        Raises:
            LedgerError: Always, because an epsilon that was computed in this process would be too small.
        """
        raise LedgerError("the ledger is in process 0 of this run: read records and epsilon there")

    def open(self, release: Release) -> Tensor:
        """Returns the value once its record is written; raises the same errors as `Ledger.open`."""
        self._together.enter(release.record, _refuse_to_write)
        return release._value

    def sync(self) -> None:
        """Does nothing: this process writes no records."""


def _refuse_to_write(_: Record) -> None:
    raise LedgerError("only process 0 of a run writes its ledger")


def _was_released(record: Record) -> PrivacyError:
    return PrivacyError(
        f"round {record.round}, {record.query}: this query result was already released and recorded, and each planned "
        "query is released only once. Continue with the next round, or start a new run"
    )


def _write_error(path: Path | None, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path} could not be written ({error.strerror}), so nothing was released. Correct the cause, for example free "
        "some space, and resume the run"
    )
