"""Reports of several rounds that share one sync of the ledger to disk (docs/design/0017-grouped-syncs.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from fedpriv.distributed.mesh import Mesh
from fedpriv.models.known_code import is_known
from fedpriv.network.engines import StateName
from fedpriv.runs.results import RoundReport
from fedpriv.storage.folder import RunFolder

GROUP_SECONDS = 0.1
"""Longest time in seconds that a round's report may wait for a sync that it shares with later rounds."""


def compute_longest_wait(
    mesh: Mesh, folder: RunFolder | None, state: StateName, pace: float | None, code: Iterable[object]
) -> float:
    """Returns how long reports may wait for a common sync, in seconds. The result is 0 if a released value could leave
    the run before the sync.

    Args:
        mesh: The processes of the run. If there are several, the other processes also have released values.
        folder: The run's folder; without a folder there is nothing to sync.
        state: Location of clients' state between rounds. State on disk may survive a power cut in which unsynced ledger
            lines are lost.
        pace: Time in seconds. Each round is padded to a multiple of it; None if rounds are not padded.
        code: All code that computes with released values during rounds. User code may make these values visible.
    """
    if folder is None or mesh.world.world_size > 1 or state != "memory" or pace is not None:
        return 0.0
    if all(is_known(thing) for thing in code):
        return GROUP_SECONDS
    return 0.0


class ReportGroup:
    """Reports that are held back because their ledger lines may not be on disk yet.

    Args:
        seconds: Longest time in seconds that a report waits; 0 if it does not wait for other rounds.
        sync: Writes all ledger lines to disk, or raises.
    """

    def __init__(self, seconds: float, sync: Callable[[], None]) -> None:
        self._seconds = seconds
        self._sync = sync
        self._reports = list[RoundReport]()
        self._synced_at = time.monotonic()

    def add(self, report: RoundReport) -> None:
        """Adds the report of a finished round."""
        self._reports.append(report)

    @property
    def is_due(self) -> bool:
        """True if the reports have waited long enough."""
        return time.monotonic() - self._synced_at >= self._seconds

    def take(self) -> list[RoundReport]:
        """Writes the ledger to disk and returns the reports, which may then leave the run.

        Raises:
            LedgerError: If the lines may not be on disk; the reports are lost.
        """
        reports = self._reports
        self._reports = []
        if reports:
            self._sync()
        self._synced_at = time.monotonic()
        return reports

    @contextmanager
    def synced(self) -> Generator[None]:
        """A context that writes the ledger to disk at its end, also after an error, because the error may contain
        released values.

        Nothing is written if the caller leaves the iteration early. In that case the lines of all reports that the
        caller received are on disk already, and Python may close the iteration at interpreter exit, when modules have
        lost their contents.
        """
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self._sync()
            raise
        self._sync()
