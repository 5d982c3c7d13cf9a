"""Read a ledger file: its header, its records, and whether it was altered.

Each line holds a hash of all lines before it (`fedpriv.privacy.chain`), and long lists in few bytes
(`fedpriv.privacy.packing`). A last line that is cut off is left out: its value was never handed out, since the line is
written first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from fedpriv.errors import LedgerError
from fedpriv.privacy.chain import START, Link, unlink
from fedpriv.privacy.correlated import CorrelatedNoise, Factor
from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.privacy.record import Record
from fedpriv.storage import files

FORMAT = 7
_RESTORE = "restore the file from a copy"


@dataclass(frozen=True)
class Extended:
    """What a ledger holds of an earlier run, which its own run extends.

    Attributes:
        rounds: Number of rounds of the earlier run.
        records: Number of its records, which are the first of this ledger.
    """

    rounds: Annotated[int, Field(ge=1)]
    records: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Header:
    """The first line of a ledger file.

    Attributes:
        fedpriv_ledger: Number of the file format.
        n_clients: Number of clients of the run.
        delta: Delta of the run's privacy settings.
        config: Digest of the run's `config.yaml`, where it had one (`fedpriv.storage.identity.of_config`).
        planned: Number of releases that were planned.
        secrets: The pairs of clients that share a secret, where there is noise of pairs, and not of all of them.
        factor: The matrix of noise that is correlated between rounds, where there is any.
        budget: The `id` of the lifetime budget that the run draws on, where it has one.
        extended: What is of an earlier run, where the run extends one.
    """

    fedpriv_ledger: int
    n_clients: Annotated[int, Field(ge=1, le=10**6)] | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    config: str | None = None
    planned: int | None = None
    secrets: Edges | None = None
    factor: Factor | None = None
    budget: str | None = None
    extended: Extended | None = None


_HEADER = TypeAdapter(Header)


def facts_of_pairs(pairs: Pairs | None) -> dict[str, Any]:
    """What a header says besides, where pairs of clients add noise."""
    if pairs is None or pairs.edges is None:
        return {}
    return {"secrets": pairs.edges}


def facts_of_time(over_time: CorrelatedNoise | None) -> dict[str, Any]:
    """What a header says besides, where noise is correlated between rounds."""
    if over_time is None:
        return {}
    return {"factor": asdict(over_time.factor)}


@dataclass(frozen=True)
class LedgerFile:
    """The complete lines of a ledger file.

    Attributes:
        path: The file.
        header: Its first line.
        texts: The records as JSON, without their chain fields.
        links: The chain fields of the header and the records, up to the first wrong one.
    """

    path: Path
    header: Header
    texts: tuple[bytes, ...]
    links: tuple[Link, ...]

    @staticmethod
    def read(path: Path) -> LedgerFile:
        """Read a ledger.

        Raises:
            LedgerError: the file is missing, begins with no header, or is of another format.
        """
        try:
            *lines, _ = files.read(path).split(b"\n")
        except FileNotFoundError as error:
            raise LedgerError(f"{path} does not exist: a run without its ledger has no epsilon") from error
        header = _header_of(lines[0] if lines else b"", path)
        texts, links = list[bytes](), list[Link]()
        for line in lines:
            found = unlink(line, links[-1].chain if links else START)
            if found is None:
                break
            texts.append(found[0])
            links.append(found[1])
        return LedgerFile(path, header, (*texts[1:], *lines[max(len(texts), 1) :]), tuple(links))

    @property
    def altered(self) -> str | None:
        """Which line was altered, as a sentence; None if none was."""
        if len(self.links) == 1 + len(self.texts):
            return None
        return f"{self.path}, line {len(self.links) + 1} does not follow from what comes before it: it was altered"

    def head(self, releases: int) -> str | None:
        """The `chain` of the line after `releases` records; None where the chain is broken before it."""
        if releases < len(self.links):
            return self.links[releases].chain
        return None

    @cached_property
    def records(self) -> list[Record]:
        """The releases, in order.

        Raises:
            LedgerError: the chain is broken, or a line is damaged.
        """
        if self.altered:
            raise LedgerError(f"{self.altered}; {_RESTORE}")
        records: list[Record] = []
        for number, text in enumerate(self.texts, start=2):
            try:
                records.append(Record.from_json(text.decode(), self.header.secrets, self.header.factor))
            except (ValueError, TypeError) as error:
                raise LedgerError(f"{self.path}, line {number} is damaged; {_RESTORE}") from error
        return records


def read_ledger(path: Path) -> list[Record]:
    """The records of a ledger file.

    Raises:
        LedgerError: the file is missing, damaged or altered.
    """
    return LedgerFile.read(path).records


def _header_of(line: bytes, path: Path) -> Header:
    try:
        header = _HEADER.validate_json(line, strict=True)
    except ValueError as error:
        raise LedgerError(f"{path}, line 1 is not a ledger's header; {_RESTORE}") from error
    if header.fedpriv_ledger != FORMAT:
        raise LedgerError(
            f"{path} is of format {header.fedpriv_ledger}, and this fedpriv reads format {FORMAT} alone: read it with "
            "the version that wrote it"
        )
    return header
