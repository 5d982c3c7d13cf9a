"""A sequence of records, stored as kinds: records that differ only in round and clients are one kind.

A long plan has a few kinds of releases, so its cost follows from a few kinds and their counts, for any number of
rounds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import lt
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.client_lists import ClientLists, joined

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record

_ALL_OF_KIND = -1  # in the column of cohorts: the kind names the clients


@dataclass(frozen=True)
class RecordTable(Sequence["Record"]):
    """A sequence of records, each created when it is read.

    Attributes:
        kinds: The distinct records, as of round 0. If the privacy cost of a kind is the same for any participants, its
            `clients` are `()`, and the table contains the clients of each release.
        numbers: Position in `kinds` of each record, in order.
        rounds: Round of each record. If rounds ascend, as in a plan, the records of a round can be found quickly.
        cohorts: Position in `lists` of each record's clients, or -1 if the kind contains the clients.
        lists: The lists of clients.
    """

    kinds: tuple[Record, ...] = ()
    numbers: array[int] = field(default_factory=lambda: array("i"))
    rounds: array[int] = field(default_factory=lambda: array("i"))
    cohorts: array[int] = field(default_factory=lambda: array("i"))
    lists: ClientLists = field(default_factory=ClientLists)

    @staticmethod
    def of(records: Iterable[Record]) -> RecordTable:
        """Returns a table of any records; a table is returned unchanged."""
        if isinstance(records, RecordTable):
            return records
        numbers: dict[Record, int] = {}
        table = RecordTable()
        for record in records:
            kind = record.changed(round=0)
            if record.costs_each_client_alike and _can_be_listed(record.clients or ()):
                kind = kind.changed(clients=())
            table.append(numbers.setdefault(kind, len(numbers)), record.round, kind, record.clients)
        return table.with_kinds(tuple(numbers))

    def append(self, number: int, round_index: int, kind: Record, clients: tuple[int, ...] | None) -> None:
        """Adds a record to a table.

        Args:
            number: Position of its kind.
            round_index: Its round.
            kind: Its kind.
            clients: Its clients, which are stored only if the kind does not contain them.
        """
        self.numbers.append(number)
        self.rounds.append(round_index)
        if kind.clients == () and clients is not None:
            self.cohorts.append(self.lists.number_of(clients))
        else:
            self.cohorts.append(_ALL_OF_KIND)

    def with_kinds(self, kinds: tuple[Record, ...]) -> RecordTable:
        """Returns a table of the same columns with other kinds."""
        return RecordTable(kinds, self.numbers, self.rounds, self.cohorts, self.lists)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordTable: ...
    def __getitem__(self, index: int | slice) -> Record | RecordTable:
        if not isinstance(index, slice):
            kind = self.kinds[self.numbers[index]]
            return kind.changed(round=self.rounds[index], clients=self.clients(index))
        if index.indices(len(self)) == (0, len(self), 1):
            return self
        return RecordTable(self.kinds, self.numbers[index], self.rounds[index], self.cohorts[index], self.lists)

    def __iter__(self) -> Iterator[Record]:
        return map(self.__getitem__, range(len(self)))

    def __add__(self, later: RecordTable) -> RecordTable:
        lists, renumbered = joined(self.lists, later.lists)
        numbers = self.numbers + array("i", (len(self.kinds) + number for number in later.numbers))
        cohorts = self.cohorts + array("i", (renumbered[n] if n != _ALL_OF_KIND else n for n in later.cohorts))
        return RecordTable(self.kinds + later.kinds, numbers, self.rounds + later.rounds, cohorts, lists)

    def clients(self, position: int) -> tuple[int, ...] | None:
        """Returns the clients of a record; None means all of them."""
        cohort = self.cohorts[position]
        if cohort == _ALL_OF_KIND:
            return self.kinds[self.numbers[position]].clients
        return self.lists[cohort]

    @property
    def is_priced_by_kind(self) -> bool:
        """True if costs do not depend on the round or on other records. This is the case without correlated noise and
        without random allocation.
        """
        return not any(kind.time or kind.batches for kind in self.kinds)

    def counts(self, start: int, end: int) -> Iterator[tuple[int, int, NDArray[np.int64] | None]]:
        """Counts the records at positions `start` to `end - 1`, by kind, in order of each kind's first record.

        Yields:
            The position of a kind that occurs, the number of its records and, if the table has their clients, in how
            many of them each client takes part, `[largest client + 1]`.
        """
        numbers = np.asarray(self.numbers)[start:end]
        cohorts = np.asarray(self.cohorts)[start:end]
        by_kind = numbers.argsort(kind="stable")
        starts = np.flatnonzero(np.diff(numbers[by_kind], prepend=-1))
        of_each_kind = np.split(by_kind, starts[1:]) if len(numbers) else []
        for positions in sorted(of_each_kind, key=lambda positions: positions[0]):
            number = int(numbers[positions[0]])
            participations = None
            if self.kinds[number].clients == ():
                participations = self.lists.participations(cohorts[positions])
            yield number, len(positions), participations

    def positions(self, round_index: int) -> range:
        """Returns the positions of a round's records, in a table in the order of rounds."""
        return range(bisect_left(self.rounds, round_index), bisect_right(self.rounds, round_index))

    def at(self, positions: Sequence[int]) -> RecordTable:
        """Returns the records at some positions."""
        if isinstance(positions, range):
            return self[positions.start : positions.stop : positions.step]
        numbers, rounds, cohorts = (
            array("i", map(column.__getitem__, positions)) for column in (self.numbers, self.rounds, self.cohorts)
        )
        return RecordTable(self.kinds, numbers, rounds, cohorts, self.lists)

    def since(self, round_index: int) -> RecordTable:
        """Returns the records of a round and later ones, in a table in the order of rounds."""
        return self[bisect_left(self.rounds, round_index) :]

    def in_round(self, round_index: int) -> RecordTable:
        """Returns the records of a round, in any table."""
        return self.at(np.flatnonzero(np.asarray(self.rounds) == round_index).tolist())

    def for_all_clients(self, kinds: tuple[Record, ...]) -> RecordTable:
        """Returns a table of other kinds; all clients take part in each record."""
        cohorts = array("i", [_ALL_OF_KIND]) * len(self)
        return RecordTable(kinds, self.numbers, self.rounds, cohorts)

    def of_attempt(self, attempt: int) -> RecordTable:
        """Returns the same records with the label of an attempt."""
        return self.with_kinds(tuple(kind.changed(attempt=attempt) for kind in self.kinds))

    def sizes(self, n_clients: int) -> Iterator[int]:
        """Yields the distinct numbers of clients of its records."""
        of_kinds = [kind.clients for kind in self.kinds if kind.clients != ()]
        yield from {n_clients if clients is None else len(clients) for clients in of_kinds}
        yield from np.unique(self.lists.sizes).tolist()


def list_kinds(records: Sequence[Record]) -> Sequence[Record]:
    """Returns the distinct records of a table, with round 0; records that are not in a table are returned unchanged."""
    if isinstance(records, RecordTable):
        return records.kinds
    return records


def _can_be_listed(clients: Sequence[int]) -> bool:
    """Returns True if clients are whole numbers from 0 in ascending order, so that no client occurs twice."""
    if not clients:
        return True
    return clients[0] >= 0 and clients[-1] < 2**31 and all(map(lt, clients, clients[1:]))
