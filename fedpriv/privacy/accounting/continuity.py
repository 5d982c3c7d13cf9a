"""Checks that rounds with correlated noise have no gaps, because a privacy cost is known only for rounds 0 to t without
gaps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedpriv.errors import PrivacyError

if TYPE_CHECKING:
    from fedpriv.privacy.record import Record


class Continuity:
    """Checks that records of correlated noise are the rounds of one run, one after another, from the first round."""

    def __init__(self) -> None:
        self._last: Record | None = None

    def check(self, record: Record) -> None:
        """Compares a record with the record before it.

        Raises:
            PrivacyError: If a round is missing or occurs twice, if a block of units takes part in a round of another
                block, or if the noise does not continue the noise of the rounds before.
        """
        if record.time is None:
            return
        if self._last is None:
            expected = 0
        else:
            expected = self._last.round + 1
        if record.round != expected:
            raise _refused(
                record,
                f"round {expected} must be released next, because the privacy cost covers all rounds so far together",
            )
        if record.time != record.time.for_round(record.round):
            block = record.round % record.time.separation
            raise _refused(
                record, f"this query result uses block {record.time.block}, but it is the turn of block {block}"
            )
        if self._last is not None and _facts(record) != _facts(self._last):
            raise _refused(record, "its noise, query, bound or matrix differs from those of earlier rounds")

    def take(self, record: Record) -> None:
        """Stores a record that was checked, to compare the next one with it."""
        if record.time is not None:
            self._last = record


def _facts(record: Record) -> Record:
    """Returns the record without the fields that differ from round to round."""
    assert record.time is not None
    return replace(record, round=0, time=record.time.for_round(0))


def _refused(record: Record, why: str) -> PrivacyError:
    return PrivacyError(
        f"round {record.round}, {record.query}: {why}. Correlated noise covers exactly one query result in every "
        "round, from the first round on"
    )
