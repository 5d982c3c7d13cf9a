"""Reads a ledger file, with its header and records, and detects if the file was altered.

Each line contains a hash of all lines before it (`fedpriv.privacy.chain`); long lists are packed
(`fedpriv.privacy.packing`). An incomplete last line is ignored. Its value was never returned, because the line is
written first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from fedpriv.errors import LedgerError
from fedpriv.privacy.chain import START, read_chained_line
from fedpriv.privacy.correlated import CorrelatedNoise, Factor
from fedpriv.privacy.pairwise import Edges, Pairs
from fedpriv.privacy.record import Record
from fedpriv.storage import files

FORMAT = 9
_RESTORE = "restore the file from a copy"


@dataclass(frozen=True)
class Extended:
    """The part of a ledger that belongs to an earlier run, which the ledger's run extends or counts.

    Attributes:
        rounds: Number of rounds of the earlier run; 0 if the ledger's run only counts its releases.
        records: Number of its records, which are the first of this ledger.
        run: Random name of the first of the runs that extend each other.
    """

    rounds: Annotated[int, Field(ge=0)]
    records: Annotated[int, Field(ge=0)]
    run: str | None = None


@dataclass(frozen=True)
class Header:
    """The first line of a ledger file.

    Attributes:
        fedpriv_ledger: Number of the file format.
        run: Random name of the run, by which copies of its ledger are recognised; None in a site's ledger.
        n_clients: Number of clients of the run.
        delta: Delta of the run's privacy settings.
        config: Digest of the run's `config.yaml` (`fedpriv.storage.identity.digest_config`); None without that file.
        planned: Number of planned releases.
        secrets: The pairs of clients that share a secret; None without pairwise noise, or if all pairs do.
        factor: The matrix of noise that is correlated between rounds; None if the noise is independent.
        budget: The `id` of the lifetime budget of the run; None without a budget.
        extended: The part that belongs to an earlier run; None if the run extends none.
        float64_noise: The reason why all noise of the run is float64 noise, in words; records do not contain it.
        not_covered: Information about the data that the run reveals and epsilon does not cover, in words.
    """

    fedpriv_ledger: int
    run: str | None = None
    n_clients: Annotated[int, Field(ge=1, le=10**6)] | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    config: str | None = None
    planned: int | None = None
    secrets: Edges | None = None
    factor: Factor | None = None
    budget: str | None = None
    extended: Extended | None = None
    float64_noise: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()


_HEADER = TypeAdapter(Header)


def make_pairwise_facts(pairs: Pairs | None) -> dict[str, Any]:
    """Returns the header's further fields for pairwise noise."""
    if pairs is None or pairs.edges is None:
        return {}
    return {"secrets": pairs.edges}


def make_correlation_facts(over_time: CorrelatedNoise | None) -> dict[str, Any]:
    """Returns the header's further fields for noise that is correlated between rounds."""
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
        links: The `chain` of the header and of each record, up to the first wrong one.
    """

    path: Path
    header: Header
    texts: tuple[bytes, ...]
    links: tuple[str, ...]

    @staticmethod
    def read(path: Path) -> LedgerFile:
        """Reads a ledger file.

        Raises:
            LedgerError: If the file is missing, begins with no header, or is of another format.
        """
        try:
            *lines, _ = files.read(path).split(b"\n")
        except FileNotFoundError as error:
            raise LedgerError(
                f"{path} does not exist: restore this ledger, because a run without its ledger has no epsilon"
            ) from error
        header = _parse_header(lines[0] if lines else b"", path)
        texts = list[bytes]()
        links = list[str]()
        chain = START
        for line in lines:
            text_and_chain = read_chained_line(line, chain)
            if text_and_chain is None:
                break
            text, chain = text_and_chain
            texts.append(text)
            links.append(chain)
        # lines from the first wrong one on stay as they are
        unchecked = lines[max(len(texts), 1) :]
        return LedgerFile(path, header, (*texts[1:], *unchecked), tuple(links))

    @property
    def altered(self) -> str | None:
        """A sentence that names the first altered line; None if no line was altered."""
        if len(self.links) == 1 + len(self.texts):
            return None
        return f"{self.path}, line {len(self.links) + 1} does not match the lines before it: it was altered"

    def head(self, releases: int) -> str | None:
        """Returns the `chain` of record number `releases`; None if the chain is broken before this record."""
        if releases < len(self.links):
            return self.links[releases]
        return None

    @property
    def first_run(self) -> str | None:
        """Random name of the run or, if it extends others, of the first of them. Ledgers with the same name begin with
        the same records.
        """
        if self.header.extended is not None:
            return self.header.extended.run
        return self.header.run

    @cached_property
    def records(self) -> list[Record]:
        """The releases, in order.

        Raises:
            LedgerError: If the chain is broken, or a line is damaged.
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

    @property
    def own_records(self) -> list[Record]:
        """The releases without those of an earlier run, in order.

        Raises:
            LedgerError: If the chain is broken, or a line is damaged.
        """
        if self.header.extended is None:
            return self.records
        return self.records[self.header.extended.records :]


def read_ledger(path: Path) -> list[Record]:
    """Returns the records of a ledger file.

    Raises:
        LedgerError: If the file is missing, damaged or altered.
    """
    return LedgerFile.read(path).records


def _parse_header(line: bytes, path: Path) -> Header:
    try:
        header = _HEADER.validate_json(line, strict=True)
    except ValueError as error:
        raise LedgerError(f"{path}, line 1 is not the header of a ledger; {_RESTORE}") from error
    if header.fedpriv_ledger != FORMAT:
        raise LedgerError(
            f"{path} has format {header.fedpriv_ledger}, but this version of fedpriv reads only format "
            f"{FORMAT}: read it with the version that wrote it"
        )
    return header
