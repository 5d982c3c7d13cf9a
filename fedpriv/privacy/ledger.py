"""The ledger: one record for every release, written before the value is handed out.

`Ledger.open` is the only way to get at the tensor inside a `Release`. On disk the ledger is append-only JSON lines,
written before the value is used: a crash can over-count what was spent, never forget it. A power cut takes nothing that
`Ledger.sync` has waited for: call it before a value, or what was made of it, leaves the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args

from pydantic import Field, TypeAdapter
from pydantic_core import from_json
from torch import Tensor

from fedpriv import files
from fedpriv.errors import LedgerError, PrivacyError, check_choice
from fedpriv.privacy.clipping import NormName

MechanismName = Literal["gaussian", "laplace", "none"]
SamplingName = Literal["full", "poisson", "without_replacement"]
Unit = Literal["sample", "client"]
Relation = Literal["replace_one", "add_remove"]
PerClient = float | tuple[float, ...]
FORMAT = 2  # of the file
_WORDS = {
    "mechanism": get_args(MechanismName),
    "sampling": get_args(SamplingName),
    "unit": get_args(Unit),
    "relation": get_args(Relation),
    "norm": get_args(NormName),
}


_LATER: dict[str, Any] = {"attempt": 0, "shared": "not recorded"}
"""What records of format 1 do not tell."""


@dataclass(frozen=True)
class Record:
    """What one release was, never what it said.

    Attributes:
        round: Round of the run, from 0.
        query: `"gradient"`, `"client_gradient"`, `"gradient_difference"`, `"statistic:<name>"` or `"message"`.
        index: Which release of this round, from 0.
        clients: The clients that answered; None means all of them.
        mechanism: Law of the noise. `"none"` is an exact answer and has `non_private` set.
        norm: Norm in which a unit's contribution was clipped.
        bound: That norm's bound C, with what rounding may add.
        noise_multiplier: Noise scale (standard deviation of a Gaussian, b of a Laplace) over sensitivity, where the
            sensitivity is C (add_remove) or 2C (replace_one). One number, or one for each of `clients`.
        sampling: How the unit was selected into the answer.
        rate: Probability (poisson) or fraction (without_replacement) of the selection; 1 when full.
        unit: Whose privacy the record prices.
        relation: Which data sets count as neighbours.
        shared: What neighbours have in common besides, as printed: numbers that were told or used as they are.
        trust: Who is trusted, as printed, e.g. `"local"`.
        non_private: Why the release has no finite price; None when it has one.
        digest: Checksum of the released value, to recognise a replay after a crash.
        attempt: Names the noise: another one after every resume with fresh noise, 0 before the first.
    """

    round: int
    query: str
    index: int
    mechanism: MechanismName
    noise_multiplier: PerClient
    unit: Unit
    relation: Relation
    clients: tuple[int, ...] | None = None
    norm: NormName = "l2"
    bound: float = 1.0
    sampling: SamplingName = "full"
    rate: PerClient = 1.0
    shared: str = ""
    trust: str = "local"
    non_private: str | None = None
    digest: str | None = None
    attempt: int = 0

    def __post_init__(self) -> None:
        # a word that nobody knows would be priced as if it were some other one
        for name, words in _WORDS.items():
            check_choice(f"record.{name}", getattr(self, name), *words)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(line: str) -> Record:
        """Read one line back.

        Raises:
            ValueError: the line is not a record.
        """
        raw: Any = from_json(line, allow_inf_nan=False)
        if not isinstance(raw, dict) or {*_LATER, *raw} != {f.name for f in fields(Record)}:
            raise ValueError("not a ledger record")
        told = _RECORD.validate_json(line, strict=True)
        return replace(told, **{name: value for name, value in _LATER.items() if name not in raw})


_RECORD = TypeAdapter(Record)  # a number is a number: "3", true and null would be priced as something else


Noise = tuple[int, int, int]


def _noise_of(record: Record) -> set[Noise]:
    """The (round, index, attempt) that noise is drawn for, whoever answered; none where there is no noise.

    A sum has the same noise for every cohort, and a secret cohort serves one answer a round.
    """
    cohort_is_secret = record.unit == "client" and record.sampling == "poisson"
    index = -1 if cohort_is_secret else record.index
    return set() if record.mechanism == "none" else {(record.round, index, record.attempt)}


@dataclass(frozen=True)
class Release:
    """A noised value and its record, made together. Only a ledger opens it."""

    record: Record
    _value: Tensor


class Guard(Protocol):
    """What a ledger asks before it admits a record: an accountant with a limit."""

    def admit(self, record: Record) -> None:
        """Count the record, or raise `BudgetExhausted` and count nothing."""
        ...


class Ledger:
    """Append-only list of releases. No noise on it serves a second answer, in this process or a later one.

    Args:
        guard: Accountant that counts every record and refuses the one that would overspend.
        path: File to append to; None keeps the ledger in memory.
        header: Public facts of the run, the first line of the file.
        digest_key: Key of the digests of released values. Without it a digest tells nothing, not even of a value that
            only a secure sum should show.

    Raises:
        LedgerError: the file exists (use `Ledger.resume`) or cannot be written.
    """

    def __init__(
        self, guard: Guard, path: Path | None = None, header: dict[str, Any] | None = None, digest_key: bytes = b""
    ) -> None:
        self._guard = guard
        self._digest_key = digest_key
        self._path, self._file = path, None
        self._records: list[Record] = []
        self._replay: list[Record] = []
        self._noises: set[Noise] = set()
        if path is not None:
            if path.exists():
                raise LedgerError(f"{path} holds the ledger of another run; choose a new folder or resume that run")
            first = json.dumps({"fedpriv_ledger": FORMAT, **(header or {})})
            try:
                files.write_whole(path, first.encode() + b"\n")
                self._file = files.Appender(path)
            except OSError as error:
                raise _not_written(path, error) from error

    @property
    def records(self) -> Sequence[Record]:
        """Everything released so far, in order."""
        return self._records

    @property
    def replays(self) -> bool:
        """Whether the next release repeats one that is on record."""
        return bool(self._replay)

    def open(self, release: Release) -> Tensor:
        """Write the record, then hand out the value.

        Raises:
            BudgetExhausted: the release would overspend; nothing was written or handed out.
            PrivacyError: an answer with this noise is on the ledger, and this is not its replay.
            LedgerError: the record could not be written, or a replayed answer differs from the one on record.
        """
        record, value = release.record, release._value
        if self._path is not None:
            record = replace(record, digest=self._digest(value))
        if self._replay:
            self._check_replay(record)
            self._replay.pop(0)
        else:
            self._refuse_old_noise(record)
            self._guard.admit(record)
            if self._path is not None:
                self._append(record.to_json())
        self._records.append(record)
        self._noises |= _noise_of(record)
        return value

    def _refuse_old_noise(self, record: Record) -> None:
        if _noise_of(record) & self._noises:
            raise PrivacyError(
                f"round {record.round} was answered already, and its noise may not serve another answer: their "
                "difference would have none. Go on with the next round, resume with fresh noise (--fresh-noise), or "
                "start a new run"
            )

    def _digest(self, value: Tensor) -> str:
        data = value.detach().contiguous().cpu().numpy().data
        return hashlib.blake2b(data, digest_size=8, key=self._digest_key).hexdigest()

    def sync(self) -> None:
        """Wait until the records so far are on the disk itself; a power cut cannot take them then.

        Raises:
            LedgerError: they may not be; nothing made of their values may leave the process.
        """
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                raise _not_written(self._path, error) from error

    def _check_replay(self, record: Record) -> None:
        if record != self._replay[0]:
            raise LedgerError(
                f"round {record.round}, {record.query}: the repeated answer differs from the one on record "
                f"({record.digest} against {self._replay[0].digest}). The data, the settings or the software changed "
                "since; releasing both would reveal their difference. Resume with fresh noise (--fresh-noise), which "
                "charges the repeated rounds again, or start a new run"
            )

    def _append(self, line: str) -> None:
        assert self._file is not None
        try:
            self._file.append(line.encode() + b"\n")
        except OSError as error:
            raise _not_written(self._path, error) from error

    @staticmethod
    def resume(
        path: Path, guard: Guard, keep: int, *, told: int = 0, fresh_noise: bool = False, digest_key: bytes = b""
    ) -> Ledger:
        """Open the ledger of a stopped run.

        Args:
            path: The ledger file.
            guard: A fresh accountant; every record of the file is counted at once, for all of them were released.
            keep: Number of records that the checkpoint has seen.
            told: Number of records that the metrics tell of.
            fresh_noise: Charge the records past the checkpoint and go on with new noise, instead of replaying them.
            digest_key: As when the run began.

        Raises:
            LedgerError: the file is missing, damaged, cannot be written, or holds fewer records than the checkpoint
                or the metrics have seen.
        """
        records = read_ledger(path)
        if len(records) < max(keep, told):
            witness = f"the checkpoint has seen {keep}" if len(records) < keep else f"the metrics tell of {told}"
            raise LedgerError(
                f"{path} holds {len(records)} records but {witness}: part of the ledger is lost, "
                "so what was spent is unknown. Restore the file; without it the run has no epsilon"
            )
        ledger = Ledger.__new__(Ledger)
        ledger._guard, ledger._path, ledger._digest_key = guard, path, digest_key
        try:
            ledger._file = files.Appender(path, keep=files.read(path).rfind(b"\n") + 1)
            ledger._file.sync()  # what a killed process left may not be on the disk itself
        except OSError as error:
            raise _not_written(path, error) from error
        counted = len(records) if fresh_noise else keep
        ledger._records, ledger._replay = list(records[:counted]), list(records[counted:])
        ledger._noises = {noise for record in records for noise in _noise_of(record)}
        for record in records:
            guard.admit(record)
        return ledger


def read_ledger(path: Path) -> list[Record]:
    """Read a ledger file. A torn last line is left out: its value was never handed out, for the line comes first.

    Raises:
        LedgerError: the file is missing, or a line in it is damaged.
    """
    try:
        *lines, _ = files.read(path).split(b"\n")
    except FileNotFoundError as error:
        raise LedgerError(f"{path} does not exist: a run without its ledger has no epsilon") from error
    _header_of(lines[0] if lines else b"", path)
    records: list[Record] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            records.append(Record.from_json(line.decode()))
        except (ValueError, TypeError) as error:
            raise LedgerError(f"{path}, line {number} is damaged; restore the file from a copy") from error
    return records


@dataclass(frozen=True)
class Header:
    """The first line of a ledger file.

    Attributes:
        fedpriv_ledger: The format.
        n_clients: Number of clients of the run.
        delta: Of its target.
    """

    fedpriv_ledger: int
    n_clients: Annotated[int, Field(ge=1, le=10**6)] | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None


_HEADER = TypeAdapter(Header)


def read_header(path: Path) -> Header:
    """The public facts at the head of a ledger file.

    Raises:
        LedgerError: it is no ledger, or of a newer format.
    """
    return _header_of(files.read(path).split(b"\n")[0], path)


def _header_of(line: bytes, path: Path) -> Header:
    try:
        header = _HEADER.validate_json(line, strict=True)
    except ValueError as error:
        raise LedgerError(f"{path}, line 1 is not a ledger's header; restore the file from a copy") from error
    if header.fedpriv_ledger not in range(1, FORMAT + 1):
        found = header.fedpriv_ledger
        raise LedgerError(f"{path} is of format {found}, and this fedpriv reads up to {FORMAT}: use a newer one")
    return header


def _not_written(path: Path | None, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path} could not be written ({error.strerror}); the answer was not released. "
        "Free some space and resume the run"
    )
