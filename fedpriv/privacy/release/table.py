"""Stores the releases of a plan as a table. Costs are computed once for each kind of release, and a run looks up the
kind of each query.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.privacy.record_table import RecordTable
from fedpriv.privacy.release.scheme import PlannedRelease, ReleaseScheme


@dataclass(frozen=True)
class ReleaseTable:
    """The planned releases of a run, in order of their rounds.

    Attributes:
        kinds: The distinct releases; see `PlannedRelease.without_clients` for those with a privacy cost that is the
            same for any participants.
        records: The records of these releases; `records.numbers` are positions in `kinds`.
    """

    kinds: tuple[PlannedRelease, ...]
    records: RecordTable

    @staticmethod
    def of(kinds: tuple[PlannedRelease, ...], columns: RecordTable) -> ReleaseTable:
        """Returns a table of some kinds, with the columns of another table."""
        return ReleaseTable(kinds, columns.with_kinds(tuple(kind.record.changed(round=0) for kind in kinds)))

    def find(self, round_index: int, query: str, index: int) -> PlannedRelease | None:
        """Returns the release of a query; None if the plan has no such query."""
        for position in self.records.positions(round_index):
            kind = self.kinds[self.records.numbers[position]]
            if kind.record.index == index and kind.record.query == query:
                release = kind.in_round(round_index)
                if kind.clients == ():
                    return release.with_clients(self.records.clients(position) or ())
                return release
        return None

    def since(self, round_index: int) -> ReleaseTable:
        """Returns the releases of a round and all later rounds."""
        return ReleaseTable(self.kinds, self.records.since(round_index))

    def priced(self, scheme: ReleaseScheme) -> ReleaseTable:
        """Returns the same releases with the costs and the noise of another scheme."""
        kinds = list[PlannedRelease]()
        for kind in self.kinds:
            priced = scheme.price(kind.answer, kind.factors)
            kinds.append(priced.without_clients() if kind.clients == () else priced)
        return ReleaseTable.of(tuple(kinds), self.records)
