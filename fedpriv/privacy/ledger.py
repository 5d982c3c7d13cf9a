"""The ledger: one record for every release, written before the value is handed out.

`Ledger.open` is the only way to get at the tensor inside a `Release`. The file is append-only JSON lines, so a crash
can make the ledger count too much, never too little. After a power cut the same holds for what was written before
`Ledger.sync`: call it before a value, or anything computed from it, leaves the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedpriv.errors import LedgerError, PrivacyError
from fedpriv.privacy.chain import START, link
from fedpriv.privacy.ledger_file import FORMAT, LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.storage import files

Noise = tuple[int, int, int]


def _noise_of(record: Record) -> set[Noise]:
    """The (round, index, attempt) that noise is drawn for, whoever answered; none where there is no noise.

    A sum has the same noise for every cohort, and a secret cohort serves one answer a round.
    """
    cohort_is_secret = record.unit == "client" and record.sampling in ("poisson", "allocation")
    index = -1 if cohort_is_secret else record.index
    if record.mechanism == "none":
        return set()
    return {(record.round, index, record.attempt)}


@dataclass(frozen=True)
class Release:
    """A noised value and its record, made together. Only a ledger opens it."""

    record: Record
    _value: Tensor


class LedgerPosition(NamedTuple):
    """A position in a ledger: its number of records, and the `chain` hash of its last line (None without a chain)."""

    releases: int
    head: str | None


class PrivacyFilter(Protocol):
    """What may refuse a release: it knows the plan, and counts what is released."""

    def admit(self, record: Record) -> None:
        """Count a release that is about to be made, or raise a `PrivacyError` and count nothing."""
        ...

    def count(self, record: Record) -> None:
        """Count a release that is on record: it was made, whether or not it should have been."""
        ...


class LedgerSync(Protocol):
    """The processes that open every release at the same time, each with rows of its own: one of them writes."""

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """Have the record written, by the one process that does; return when it is, in all of them.

        Args:
            record: The record, with the checksum of the rows that are here.
            write: Writes it; called in one process alone, with a checksum of all rows.

        Raises:
            BudgetExhausted: the release would overspend.
            PrivacyError: it is refused, or not the same release in all processes.
        """
        ...


class SingleWriter:
    """One process opens all releases."""

    def enter(self, record: Record, write: Callable[[Record], None]) -> None:
        """See `LedgerSync`."""
        write(record)


def _anybody() -> None:
    """A ledger that nobody else writes."""


class Ledger:
    """Append-only list of releases.

    Guarantee: the same noise never covers two different answers, in this process or after a resume (their difference
    would have no noise).

    Args:
        guard: Counts every record, and refuses a release that may not be made.
        path: File to append to; None keeps the ledger in memory.
        header: Public facts of the run, the first line of the file.
        digest_key: Secret key of the checksums of released values; without the key a checksum reveals nothing.
        seal_key: Secret key of the lines' seals; its holder can tell lines that were written without it.

    Attributes:
        may_write: Called before a record is written; raises if another run has taken over the file.
        together: The processes that open releases with this one.

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
        self._guard, self.may_write = guard, _anybody
        self.together: LedgerSync = SingleWriter()
        self._digest_key, self._seal_key = digest_key, seal_key
        self._path, self._file = path, None
        self._head: str | None = None
        self._records: list[Record] = []
        self._replay: list[tuple[Record, str | None]] = []
        self._noises: set[Noise] = set()
        if path is not None:
            if path.exists():
                raise LedgerError(f"{path} holds the ledger of another run; choose a new folder or resume that run")
            first, self._head = link(
                json.dumps({"fedpriv_ledger": FORMAT, **(header or {})}, allow_nan=False), START, seal_key
            )
            try:
                files.write_whole(path, first.encode() + b"\n")
                self._file = files.Appender(path)
            except OSError as error:
                raise _not_written(path, error) from error

    @property
    def records(self) -> Sequence[Record]:
        """The records of everything released so far, in order."""
        return self._records

    @property
    def mark(self) -> LedgerPosition:
        """The present position, as checkpoints keep it."""
        return LedgerPosition(len(self._records), self._head)

    @property
    def replays(self) -> bool:
        """Whether the next release must repeat one on record: after a crash, rounds past the checkpoint run again."""
        return bool(self._replay)

    def open(self, release: Release) -> Tensor:
        """Write the record, then hand out the value.

        Raises:
            BudgetExhausted: the release would overspend; nothing was written or handed out.
            PrivacyError: the same noise was used for an earlier answer.
            LedgerError: the record could not be written, or a repeated answer differs from the one on record.
        """
        record, value = release.record, release._value
        if self._path is not None:
            record = replace(record, digest=_digest(value, self._digest_key))
        self.together.enter(record, self._enter)
        return value

    def begin_with(self, records: Sequence[Record]) -> None:
        """Count and write down what an earlier run has released, which this run extends. For a new ledger only.

        Raises:
            LedgerError: this ledger has records, or one could not be written.
        """
        if self._records:
            raise LedgerError("the releases of an earlier run come first, and this ledger has begun")
        for record in records:
            self._enter(record, self._guard.count)
        self.sync()

    def _enter(self, record: Record, allow: Callable[[Record], None] | None = None) -> None:
        """Write a record, once `allow` has counted it: by default the guard, which may refuse it."""
        if self._replay:
            self._check_replay(record)
            _, self._head = self._replay.pop(0)
        else:
            self._refuse_old_noise(record)
            (allow or self._guard.admit)(record)
            if self._path is not None:
                self._append(record)
        self._records.append(record)
        self._noises |= _noise_of(record)

    def _refuse_old_noise(self, record: Record) -> None:
        if _noise_of(record) & self._noises:
            raise PrivacyError(
                f"round {record.round} was answered already, and its noise may not serve another answer: their "
                "difference would have none. Go on with the next round, resume with fresh noise (--fresh-noise), or "
                "start a new run"
            )

    def sync(self) -> None:
        """Wait until the records so far are on the physical disk (fsync), where they survive a power cut.

        Raises:
            LedgerError: they may not be there; nothing computed from their values may leave the process.
        """
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                raise _not_written(self._path, error) from error

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
            raise _not_written(self._path, error) from error
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
        """Open the ledger of a stopped run.

        Args:
            path: The ledger file.
            guard: A fresh accountant; it counts every record of the file.
            keep: Number of records at the checkpoint.
            fresh_noise: What becomes of the records past the checkpoint. False: their rounds run again with the same
                noise, and must give the same answers. True: they stay charged and the rounds run with new noise.
            digest_key: As when the run began.
            seal_key: As when the run began.

        Raises:
            LedgerError: the file is missing, damaged or altered, cannot be written, or holds fewer records than the
                checkpoint has seen.
        """
        found = LedgerFile.read(path)
        records = found.records
        if len(records) < keep:
            raise LedgerError(
                f"{path} holds {len(records)} records but the checkpoint has seen {keep}: part of the ledger is lost, "
                "so what was spent is unknown. Restore the file; without it the run has no epsilon"
            )
        ledger = Ledger.__new__(Ledger)
        ledger._guard, ledger._path, ledger.may_write, ledger.together = guard, path, _anybody, SingleWriter()
        ledger._digest_key, ledger._seal_key = digest_key, seal_key
        try:
            ledger._file = files.Appender(path, keep=files.read(path).rfind(b"\n") + 1)
            ledger._file.sync()  # what a killed process left may not be on the disk itself
        except OSError as error:
            raise _not_written(path, error) from error
        counted = len(records) if fresh_noise else keep
        ledger._records, ledger._head = list(records[:counted]), found.head(counted)
        heads = [found.head(number) for number in range(counted + 1, len(records) + 1)]
        ledger._replay = list(zip(records[counted:], heads, strict=True))
        ledger._noises = {noise for record in records for noise in _noise_of(record)}
        for record in records:
            guard.count(record)
        return ledger


class FollowerLedger:
    """What opens releases in a process beside the one that writes the ledger. It keeps no records.

    Args:
        together: The processes.
        digest_key: Of the ledger; None where that is kept in memory, without checksums.
    """

    mark, replays = LedgerPosition(0, None), False

    def __init__(self, together: LedgerSync, digest_key: bytes | None) -> None:
        self._together, self._digest_key = together, digest_key

    @property
    def records(self) -> Sequence[Record]:
        """Are elsewhere.

        Raises:
            LedgerError: always: an epsilon that was counted here would be too small.
        """
        raise LedgerError("the ledger is in process 0 of this run: ask it there for records and epsilon")

    def open(self, release: Release) -> Tensor:
        """Hand out the value once its record is written; errors are those of `Ledger.open`."""
        record, value = release.record, release._value
        if self._digest_key is not None:
            record = replace(record, digest=_digest(value, self._digest_key))
        self._together.enter(record, _elsewhere)
        return value

    def sync(self) -> None:
        """Nothing is written here."""


def _elsewhere(_: Record) -> None:
    raise LedgerError("only process 0 of a run writes its ledger")


def _digest(value: Tensor, key: bytes) -> str:
    data = value.detach().contiguous().cpu().numpy().data
    return hashlib.blake2b(data, digest_size=8, key=key).hexdigest()


def _not_written(path: Path | None, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path} could not be written ({error.strerror}); the answer was not released. "
        "Free some space and resume the run"
    )
