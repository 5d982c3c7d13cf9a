"""The ledger: one record for every release, written before the value is returned.

`Ledger.open` is the only way to get at the tensor inside a `Release`. The file is append-only JSON lines, so a crash
can make the ledger count too much, never too little. After a power cut the same holds for what was written before
`Ledger.sync`: call it before a value, or anything computed from it, leaves the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cryptography.hazmat.primitives.poly1305 import Poly1305
from torch import Tensor

from fedpriv.errors import LedgerError, PrivacyError
from fedpriv.privacy.chain import START, link
from fedpriv.privacy.ledger_file import FORMAT, LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.storage import files

NoiseLabel = tuple[int, int, int]
VOID = "void"
"""The query of a record that voids a ledger: no bound on epsilon holds."""


def _noise_labels(record: Record) -> set[NoiseLabel]:
    """Returns the (round, index, attempt) that name a record's noise; the empty set for an answer without noise.

    The clients do not matter: a sum has the same noise for every cohort. A secret cohort serves one answer a round, so
    that the index does not matter either.
    """
    if record.mechanism == "none":
        return set()
    cohort_is_secret = record.unit == "client" and record.sampling in ("poisson", "allocation")
    if cohort_is_secret:
        index = -1
    else:
        index = record.index
    return {(record.round, index, record.attempt)}


@dataclass(frozen=True)
class Release:
    """A noised value and its record, made together. Only a ledger opens it: see `Ledger.open`."""

    record: Record
    _value: Tensor


class LedgerPosition(NamedTuple):
    """A position in a ledger: its number of records, and the `chain` hash of its last line (None without a chain)."""

    releases: int
    head: str | None


class PrivacyFilter(Protocol):
    """Counts releases, and may refuse one before it is made."""

    def admit(self, record: Record) -> None:
        """Counts a release that is about to be made, or raises a `PrivacyError` and counts nothing."""
        ...

    def count(self, record: Record) -> None:
        """Counts a release that was made before and is on record, and never refuses it."""
        ...


class LedgerSync(Protocol):
    """Synchronises the processes of a run, which open every release together, each with its own rows.

    One process alone writes the record.
    """

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """Has one process write the record, and returns in all processes once it is written.

        Args:
            record: The record, with the checksum of this process's rows.
            write: Writes a record; called in one process alone, with a checksum of all rows.

        Raises:
            BudgetExhausted: the release would overspend.
            PrivacyError: the release is refused, or not the same in all processes.
        """
        ...


class SingleWriter:
    """The `LedgerSync` of a run with a single process, which writes every record itself."""

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """See `LedgerSync`."""
        write(record)


def _any_writer_may() -> None:
    """Default of `Ledger.may_write`: no other run can take over the file."""


class Ledger:
    """Append-only list of releases.

    Guarantee: the same noise never covers two different answers, in this process or after a resume (their difference
    would have no noise).

    Args:
        guard: Counts every record, and refuses a release that may not be made.
        path: File to append to; None keeps the ledger in memory.
        header: Public facts of the run, written as the first line of the file.
        digest_key: Secret key of the checksums of released values; without the key a checksum reveals nothing.
        seal_key: Secret key of the lines' seals; its holder can recognise lines that were written without it.

    Attributes:
        may_write: Called before a record is written; raises if another run has taken over the file.
        together: Synchronises the processes that open releases with this one.

    Raises:
        LedgerError: the file exists (use `Ledger.resume`) or cannot be written.
    """

    def __init__(
        self,
        guard: PrivacyFilter,
        path: Path | None = None,
        header: dict[str, Any] | None = None,
        digest_key: bytes = b"",
        seal_key: bytes = b"",
    ) -> None:
        self._guard = guard
        self.may_write = _any_writer_may
        self.together: LedgerSync = SingleWriter()
        self._digest_key = digest_key
        self._seal_key = seal_key
        self._path = path
        self._file = None
        self._head: str | None = None  # the `chain` of the last line
        self._records: list[Record] = []
        # records past the checkpoint of a resumed run, which must be repeated, each with the `chain` of its line
        self._replay: list[tuple[Record, str | None]] = []
        self._noises: set[NoiseLabel] = set()
        if path is not None:
            if path.exists():
                fix = "give another folder, or resume=True to go on with that run"
                raise LedgerError(f"{path} holds the ledger of another run: {fix}")
            header_text = json.dumps({"fedpriv_ledger": FORMAT, **(header or {})}, allow_nan=False)
            line, self._head = link(header_text, START, seal_key)
            try:
                files.write_whole(path, line.encode() + b"\n")
                self._file = files.Appender(path)
            except OSError as error:
                raise _write_error(path, error) from error

    @property
    def records(self) -> Sequence[Record]:
        """The records of everything released so far, in order."""
        return self._records

    @property
    def mark(self) -> LedgerPosition:
        """The current position, as checkpoints store it."""
        return LedgerPosition(len(self._records), self._head)

    @property
    def replays(self) -> bool:
        """Whether the next release must repeat one on record: after a stop, rounds past the checkpoint run again."""
        return bool(self._replay)

    @property
    def is_void(self) -> bool:
        """True if a record states that no bound on epsilon holds, also one past the checkpoint of a resumed run."""
        return any(record.query == VOID for record in (*self._records, *(record for record, _ in self._replay)))

    def open(self, release: Release) -> Tensor:
        """Writes the record, then returns the value.

        Raises:
            BudgetExhausted: the release would overspend; nothing is written or returned.
            PrivacyError: the same noise was used for an earlier answer.
            LedgerError: the record could not be written, or a repeated answer differs from the one on record.
        """
        record, value = release.record, release._value
        if self._path is not None:
            record = record.changed(digest=_digest(value, record, self._digest_key))
        self.together.enter(record, self._write_record)
        return value

    def begin_with(self, records: Sequence[Record]) -> None:
        """Counts and writes the records of an earlier run, which this run extends. For a new ledger only.

        Raises:
            LedgerError: this ledger has records, or one could not be written.
        """
        if self._records:
            raise LedgerError("the releases of an earlier run come first, and this ledger has begun")
        for record in records:
            self._write_record(record, self._guard.count)
        self.sync()

    def _write_record(self, record: Record, allow: Callable[[Record], None] | None = None) -> None:
        """Writes a record, after `allow` has counted it: by default the guard's `admit`, which may refuse it."""
        noises = _noise_labels(record)
        if self._replay:
            self._check_replay(record)
            _, self._head = self._replay.pop(0)
        else:
            if noises & self._noises:
                raise _noise_was_used(record)
            (allow or self._guard.admit)(record)
            if self._path is not None:
                self._append(record)
        self._records.append(record)
        self._noises |= noises

    def void(self, reason: str) -> None:
        """Records that no bound on epsilon holds for what was released; nothing happens if nothing was.

        Args:
            reason: Why, in words; it becomes the reason for which epsilon is infinite.

        Raises:
            LedgerError: the record could not be written.
        """
        for record, head in self._replay:  # they were released before the run was stopped
            self._records.append(record)
            self._head = head
        self._replay = []
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
            LedgerError: they may not be on the disk; nothing computed from their values may leave the process.
        """
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                raise _write_error(self._path, error) from error

    def _check_replay(self, record: Record) -> None:
        on_record, _ = self._replay[0]
        if record != on_record:
            raise LedgerError(
                f"round {record.round}, {record.query}: the repeated answer differs from the one on record "
                f"({record.digest} against {on_record.digest}). The data, the settings or the software changed "
                "since; releasing both would reveal their difference. Resume with fresh noise (--fresh-noise), which "
                "charges the repeated rounds again, or start a new run"
            )

    def _append(self, record: Record) -> None:
        assert self._file is not None
        self.may_write()
        assert self._head is not None
        line, head = link(record.to_json(), self._head, self._seal_key)
        try:
            self._file.append(line.encode() + b"\n")
        except OSError as error:
            raise _write_error(self._path, error) from error
        self._head = head

    @staticmethod
    def resume(
        path: Path,
        guard: PrivacyFilter,
        keep: int,
        *,
        fresh_noise: bool = False,
        digest_key: bytes = b"",
        seal_key: bytes = b"",
    ) -> Ledger:
        """Opens the ledger of a stopped run.

        Args:
            path: The ledger file.
            guard: A new filter; it counts every record of the file.
            keep: Number of records at the checkpoint.
            fresh_noise: How records past the checkpoint are treated. False: their rounds run again with the same
                noise, and must give the same answers. True: they stay charged and the rounds run with new noise.
            digest_key: The key with which the run started.
            seal_key: The key with which the run started.

        Raises:
            LedgerError: the file is missing, damaged or altered, cannot be written, or holds fewer records than the
                checkpoint has seen.
        """
        file = LedgerFile.read(path)
        records = file.records
        if len(records) < keep:
            raise LedgerError(
                f"{path} holds {len(records)} records but the checkpoint has seen {keep}: part of the ledger is lost, "
                "so what was spent is unknown. Restore the file; without it the run has no epsilon"
            )
        ledger = Ledger.__new__(Ledger)
        ledger._guard = guard
        ledger._path = path
        ledger.may_write = _any_writer_may
        ledger.together = SingleWriter()
        ledger._digest_key = digest_key
        ledger._seal_key = seal_key
        try:
            # without a last line that is cut off
            ledger._file = files.Appender(path, keep=files.read(path).rfind(b"\n") + 1)
            ledger._file.sync()  # lines that a killed process wrote may not be on the disk itself
        except OSError as error:
            raise _write_error(path, error) from error
        # the records that are not repeated
        if fresh_noise:
            counted = len(records)
        else:
            counted = keep
        ledger._records = list(records[:counted])
        ledger._head = file.head(counted)
        heads = [file.head(number) for number in range(counted + 1, len(records) + 1)]
        ledger._replay = list(zip(records[counted:], heads, strict=True))
        ledger._noises = {noise for record in records for noise in _noise_labels(record)}
        for record in records:
            guard.count(record)
        return ledger


class FollowerLedger:
    """Opens releases in a process that does not write the ledger. It keeps no records.

    Args:
        together: Synchronises the processes of the run.
        digest_key: Key of the ledger's checksums; None for a ledger in memory, which has none.
    """

    mark, replays = LedgerPosition(0, None), False

    def __init__(self, together: LedgerSync, digest_key: bytes | None) -> None:
        self._together, self._digest_key = together, digest_key

    @property
    def records(self) -> Sequence[Record]:
        """Not available: only the process that writes the ledger has records.

        Raises:
            LedgerError: always; an epsilon that was computed here would be too small.
        """
        raise LedgerError("the ledger is in process 0 of this run: ask it there for records and epsilon")

    def open(self, release: Release) -> Tensor:
        """Returns the value once its record is written; errors are those of `Ledger.open`."""
        record, value = release.record, release._value
        if self._digest_key is not None:
            record = record.changed(digest=_digest(value, record, self._digest_key))
        self._together.enter(record, _refuse_to_write)
        return value

    def sync(self) -> None:
        """Does nothing: this process writes no records."""


def _refuse_to_write(_: Record) -> None:
    raise LedgerError("only process 0 of a run writes its ledger")


def _digest(value: Tensor, record: Record, key: bytes) -> str:
    """Returns a keyed checksum of a released value, 16 hexadecimal digits.

    The bytes go through Poly1305 with a key of this answer alone, ten times as fast as through a hash: two
    different values of n bytes have the same tag with probability at most `8 ceil(n / 16) / 2**106` (Bernstein, 2005,
    theorem 3.3). The keyed hash of the tag reveals nothing to those without the key.
    """
    name = f"{record.round}/{record.query}/{record.index}".encode()
    one_time_key = hashlib.blake2b(name, digest_size=32, key=key, person=b"fedpriv values").digest()
    octets = value.detach().contiguous().cpu().numpy().reshape(-1).view("uint8")
    tag = Poly1305.generate_tag(one_time_key, octets.data)
    return hashlib.blake2b(name + tag, digest_size=8, key=key).hexdigest()


def _noise_was_used(record: Record) -> PrivacyError:
    return PrivacyError(
        f"round {record.round} was answered already, and its noise may not serve another answer: their "
        "difference would have none. Go on with the next round, resume with fresh noise (--fresh-noise), or "
        "start a new run"
    )


def _write_error(path: Path | None, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path} could not be written ({error.strerror}); the answer was not released. "
        "Free some space and resume the run"
    )
