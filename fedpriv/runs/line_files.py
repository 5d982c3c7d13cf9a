"""Files with one line for each round: `metrics.jsonl`, which every run with a folder writes, and `metrics.csv`.

A resumed run continues from its checkpoint (with zeros for lost query results), so lines of later rounds are removed
first (`keep`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.errors import FedprivError
from fedpriv.runs.results import read_metrics
from fedpriv.storage import files, strict_json

if TYPE_CHECKING:
    from fedpriv.runs.results import RoundReport

METRICS = "metrics.jsonl"


class RoundLines:
    """A file with one line per round, to which a run only appends.

    Args:
        path: The file.
        rounds: The rounds of the complete lines in the file, below the heading.
        keep: Number of the last round for which lines are kept.
        heading: First line of a new file.

    Attributes:
        heading: First line of the file: the heading of the existing file if any of its lines are kept.

    Raises:
        FedprivError: If the file cannot be written.
    """

    def __init__(self, path: Path, rounds: Sequence[int], keep: float, heading: str = "") -> None:
        kept_rounds = list(itertools.takewhile(lambda number: number <= keep, rounds))
        self._path = path
        self._last = max(kept_rounds, default=0)
        self.heading = heading
        try:
            lines = list[bytes]()
            if kept_rounds:
                lines = files.read(path).split(b"\n")[: bool(heading) + len(kept_rounds)]
            if heading and kept_rounds:
                self.heading = lines[0].decode("utf-8", "replace")
            self._file = files.Appender(path, keep=sum(len(line) + 1 for line in lines))
            if heading and not kept_rounds:
                self._file.append(f"{heading}\n".encode())
        except OSError as error:
            raise _full(path, error) from error

    def write(self, report: RoundReport, line: str) -> None:
        """Appends the line of a round, unless the file contains it. If a checkpoint follows, the line is synced to disk
        first.
        """
        if report.round > self._last:
            try:
                self._file.append(line.encode())
            except OSError as error:
                raise _full(self._path, error) from error
        if report.checkpoint:
            self.sync()

    def sync(self) -> None:
        """Waits until all lines are on the physical disk."""
        try:
            self._file.sync()
        except OSError as error:
            raise _full(self._path, error) from error


class MetricsFile:
    """Writes a `metrics.jsonl` with one JSON object for each round, without times. Numbers that are not finite are
    written as null.

    Args:
        path: The file.
        keep: Lines of an existing file are kept up to this round; 0 starts a new file.

    Raises:
        FedprivError: If the file cannot be written.
    """

    def __init__(self, path: Path, keep: float = 0) -> None:
        self._lines = RoundLines(path, [row["round"] for row in read_metrics(path)], keep)

    def write(self, report: RoundReport) -> None:
        """Appends one round, unless the file contains it."""
        epsilon = strict_json.encode_epsilon(report.epsilon)
        row = {"round": report.round, "epsilon": epsilon, "releases": report.releases, **report.metrics}
        if report.head is not None:
            row["head"] = report.head
        self._lines.write(report, strict_json.dumps(row) + "\n")

    def sync(self) -> None:
        """Waits until all lines are on the physical disk."""
        self._lines.sync()


def _full(path: Path, error: OSError) -> FedprivError:
    return FedprivError(
        f"{path} could not be written ({error.strerror}); correct the cause, e.g. free some space, and resume the run"
    )
