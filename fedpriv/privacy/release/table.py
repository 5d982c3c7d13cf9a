"""The releases of a plan as a table: costs are computed once per kind, and a run looks up the kind of each query."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.privacy.record_table import RecordTable
from fedpriv.privacy.release.scheme import PlannedRelease, ReleaseScheme


@dataclass(frozen=True)
class ReleaseTable:
    """The planned releases of a run, in order of their rounds.

    Attributes:
        kinds: The distinct releases.
        records: Their records; `records.numbers` are positions in `kinds`.
    """

    kinds: tuple[PlannedRelease, ...]
    records: RecordTable

    @staticmethod
    def of(kinds: Sequence[PlannedRelease], numbers: array[int], rounds: array[int]) -> ReleaseTable:
        """Returns a table of some kinds, with the position in `kinds` and the round of each release."""
        records = tuple(kind.record.changed(round=0) for kind in kinds)
        return ReleaseTable(tuple(kinds), RecordTable(records, numbers, rounds))

    def find(self, round_index: int, query: str, index: int) -> PlannedRelease | None:
        """Returns the release of a query; None if the plan has no such query."""
        for position in self.records.positions(round_index):
            kind = self.kinds[self.records.numbers[position]]
            if kind.record.index == index and kind.record.query == query:
                return kind.in_round(round_index)
        return None

    def since(self, round_index: int) -> ReleaseTable:
        """Returns the releases of a round and of those after it."""
        return ReleaseTable(self.kinds, self.records.since(round_index))

    def priced(self, scheme: ReleaseScheme) -> ReleaseTable:
        """Returns the same releases with the costs and the noise of another scheme."""
        kinds = [scheme.price(kind.answer, kind.factors) for kind in self.kinds]
        return ReleaseTable.of(kinds, self.records.numbers, self.records.rounds)
