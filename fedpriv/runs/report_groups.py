"""Reports of rounds whose ledger lines one sync brings to the disk (docs/design/0017-grouped-syncs.md)."""

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
"""How long the report of a round may wait for a sync that it shares with later rounds."""


def longest_wait(
    mesh: Mesh, folder: RunFolder | None, state: StateName, pace: float | None, code: Iterable[object]
) -> float:
    """Returns for how many seconds reports may wait for a common sync: 0 where a value might be seen before it.

    Args:
        mesh: The processes of the run: others would hold values as well.
        folder: The run's folder; without one there is nothing to sync.
        state: Where clients' state is between rounds: on the disk it may survive a power cut that the ledger does not.
        pace: Seconds of which a round takes a whole multiple; None if rounds take what they take.
        code: All that computes with released values while rounds run; code of a user's own may show them.
    """
    if folder is None or mesh.world.world_size > 1 or state != "memory" or pace is not None:
        return 0.0
    if all(is_known(thing) for thing in code):
        return GROUP_SECONDS
    return 0.0


class ReportGroup:
    """Reports that nobody has seen, since their ledger lines may not be on the disk yet.

    Args:
        seconds: How long a report may wait; 0 waits for no other round.
        sync: Brings all ledger lines to the disk, or raises.
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
        """Whether the reports have waited long enough."""
        return time.monotonic() - self._synced_at >= self._seconds

    def take(self) -> list[RoundReport]:
        """Brings the ledger to the disk, and returns the reports, which may then be seen.

        Raises:
            LedgerError: the lines may not be on the disk; the reports are lost.
        """
        reports = self._reports
        self._reports = []
        if reports:
            self._sync()
        self._synced_at = time.monotonic()
        return reports

    @contextmanager
    def synced(self) -> Generator[None]:
        """A context whose end brings the ledger to the disk, also if an error ends it: it may show values.

        A caller who leaves the iteration early has only reports whose lines are on the disk already. Python may then
        close the iteration while it exits, when modules have lost their contents.
        """
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self._sync()
            raise
        self._sync()
