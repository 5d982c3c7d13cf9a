"""A sequence of records, stored as kinds: records that differ in nothing but their round are one kind.

A long plan has a few kinds of releases, so its cost follows from a few kinds and their counts, for any number of
rounds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record


@dataclass(frozen=True)
class RecordTable(Sequence["Record"]):
    """A sequence of records, which are made when they are read.

    Attributes:
        kinds: The distinct records, as of round 0.
        numbers: Position in `kinds` of each record, in order.
        rounds: Round of each record. Where rounds ascend, as in a plan, they can be looked up.
    """

    kinds: tuple[Record, ...]
    numbers: array[int]
    rounds: array[int]

    @staticmethod
    def of(records: Iterable[Record]) -> RecordTable:
        """Returns a table of any records; a table is returned as it is."""
        if isinstance(records, RecordTable):
            return records
        numbers: dict[Record, int] = {}
        numbers_in_order, rounds = array("l"), array("l")
        for record in records:
            numbers_in_order.append(numbers.setdefault(record.changed(round=0), len(numbers)))
            rounds.append(record.round)
        return RecordTable(tuple(numbers), numbers_in_order, rounds)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordTable: ...
    def __getitem__(self, index: int | slice) -> Record | RecordTable:
        if isinstance(index, slice):
            return RecordTable(self.kinds, self.numbers[index], self.rounds[index])
        return self.kinds[self.numbers[index]].changed(round=self.rounds[index])

    def __iter__(self) -> Iterator[Record]:
        for number, round_index in zip(self.numbers, self.rounds, strict=True):
            yield self.kinds[number].changed(round=round_index)

    def __add__(self, later: RecordTable) -> RecordTable:
        numbers = self.numbers + array("l", (len(self.kinds) + number for number in later.numbers))
        return RecordTable(self.kinds + later.kinds, numbers, self.rounds + later.rounds)

    @property
    def is_priced_by_kind(self) -> bool:
        """True if no cost depends on the round, or on other records: no correlated noise, no epochs of allocation."""
        return not any(kind.time or kind.batches for kind in self.kinds)

    def counts(self) -> Iterator[tuple[Record, int]]:
        """Yields each kind that occurs, as of round 0, and how often it does."""
        for number, count in Counter(self.numbers).items():
            yield self.kinds[number], count

    def positions(self, round_index: int) -> range:
        """Returns the positions of a round's records, in a table in the order of rounds."""
        return range(bisect_left(self.rounds, round_index), bisect_right(self.rounds, round_index))

    def at(self, positions: Sequence[int]) -> RecordTable:
        """Returns the records at some positions."""
        numbers, rounds = self.numbers, self.rounds
        return RecordTable(
            self.kinds, array("l", (numbers[i] for i in positions)), array("l", (rounds[i] for i in positions))
        )

    def since(self, round_index: int) -> RecordTable:
        """Returns the records of a round and later ones, in a table in the order of rounds."""
        return self[bisect_left(self.rounds, round_index) :]

    def of_attempt(self, attempt: int) -> RecordTable:
        """Returns the same records with the label of an attempt."""
        return RecordTable(tuple(kind.changed(attempt=attempt) for kind in self.kinds), self.numbers, self.rounds)


def list_kinds(records: Sequence[Record]) -> Sequence[Record]:
    """Returns the distinct records of a table, as of round 0; other records as they are."""
    if isinstance(records, RecordTable):
        return records.kinds
    return records
