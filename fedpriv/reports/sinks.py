"""Where a run writes its rounds: metrics files, TensorBoard, and trackers.

A resumed run repeats the rounds past its checkpoint. With the same noise they give the same numbers, so files keep
their lines (`keep=math.inf`). With fresh noise the lines past the checkpoint are removed first (`keep` is its round).
"""

from __future__ import annotations

import csv
import io
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.errors import FedprivError
from fedpriv.reports.tags import scalars
from fedpriv.reports.trackers import MLflow, WandB
from fedpriv.runs.progress_display import ProgressDisplay
from fedpriv.runs.results import read_metrics
from fedpriv.settings.checks import checked
from fedpriv.storage import files, strict_json

if TYPE_CHECKING:
    from fedpriv.runs.results import RoundReport

__all__ = ["Csv", "Jsonl", "MLflow", "ProgressDisplay", "TensorBoard", "WandB"]


@checked("sinks")
class Jsonl:
    """`metrics.jsonl`: one JSON object a round, without times. A number that is not finite is null.

    Args:
        path: The file.
        keep: Keep lines of an existing file up to this round; 0 starts a new file.

    Raises:
        FedprivError: the file cannot be written.
    """

    def __init__(self, path: str | Path, keep: float = 0) -> None:
        path = Path(path)
        self._lines = _Lines(path, [row["round"] for row in read_metrics(path)], keep)

    def write(self, report: RoundReport) -> None:
        """Appends one round, unless the file has it."""
        epsilon = strict_json.epsilon(report.epsilon)
        row = {"round": report.round, "epsilon": epsilon, "releases": report.releases, **report.metrics}
        if report.head is not None:
            row["head"] = report.head
        self._lines.write(report, strict_json.dumps(row) + "\n")

    def close(self) -> None:
        """Waits until all lines are on the physical disk."""
        self._lines.sync()


@checked("sinks")
class Csv:
    """`metrics.csv`: the rounds as a table; values that were not measured or are not finite are empty.

    An existing file whose lines are kept keeps its own columns, also where this version has other metrics.

    Args:
        path: The file.
        keep: Keep lines of an existing file up to this round; 0 starts a new file.
        more: Names of further columns, e.g. `test_auroc`, or `test_f1` for a metric of your own.

    Raises:
        FedprivError: the file cannot be written.
    """

    def __init__(self, path: str | Path, keep: float = 0, more: Sequence[str] = ()) -> None:
        path = Path(path)
        columns = ["round", "epsilon", "test_loss", "test_accuracy", *more]
        self._lines = _Lines(path, _csv_rounds(path), keep, ",".join(dict.fromkeys(columns)))
        self._columns = self._lines.heading.split(",")

    def write(self, report: RoundReport) -> None:
        """Appends one round, unless the file has it."""
        text = io.StringIO()
        row = {"round": report.round, "epsilon": report.epsilon, **strict_json.plain(report.metrics)}
        csv.writer(text, lineterminator="\n").writerow([row.get(name, "") for name in self._columns])
        self._lines.write(report, text.getvalue())

    def close(self) -> None:
        """Waits until all lines are on the physical disk."""
        self._lines.sync()


@checked("sinks")
class TensorBoard:
    """TensorBoard events: test metrics, epsilon, its fraction of the target, and a text where training breaks.

    Runs with constraints also have the largest violation and the largest multiplier of each round.

    All events have the time at which the log was opened, since the time of a round would reveal how many examples or
    clients were drawn.

    Args:
        folder: Where event files go.
        done: Rounds done before a resume; later points of the stopped run are hidden.
    """

    def __init__(self, folder: str | Path, done: int = 0) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # slow to import

        self._opened = time.time()
        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def text(self, name: str, markdown: str, step: int = 0) -> None:
        """Shows a text."""
        self._writer.add_text(name, markdown, step, self._opened)

    def write(self, report: RoundReport) -> None:
        """Adds one round."""
        for tag, value in scalars(report.metrics, report.epsilon, report.target).items():
            self._writer.add_scalar(tag, value, report.round, self._opened)
        if report.warning:
            self.text("warning", report.warning, report.round)

    def close(self) -> None:
        """Writes all events to the disk."""
        self._writer.close()


class _Lines:
    """A file of one line a round that only ever grows.

    Args:
        path: The file.
        rounds: The rounds of its complete lines, below the heading.
        keep: Keep the lines of rounds up to this one.
        heading: First line of a new file.

    Attributes:
        heading: First line of the file; that of the existing file if any of its lines are kept.
    """

    def __init__(self, path: Path, rounds: Sequence[int], keep: float, heading: str = "") -> None:
        kept_rounds = list(itertools.takewhile(lambda number: number <= keep, rounds))
        self._path = path
        self._last = max(kept_rounds, default=0)
        self.heading = heading
        try:
            lines = list[bytes]()
            if kept_rounds:
                lines = _read(path).split(b"\n")[: bool(heading) + len(kept_rounds)]
            if heading and kept_rounds:
                self.heading = lines[0].decode("utf-8", "replace")
            self._file = files.Appender(path, keep=sum(len(line) + 1 for line in lines))
            if heading and not kept_rounds:
                self._file.append(f"{heading}\n".encode())
        except OSError as error:
            raise _full(path, error) from error

    def write(self, report: RoundReport, line: str) -> None:
        """Appends the line of a round, unless the file has it; writes it to the disk before a checkpoint follows."""
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


def _csv_rounds(path: Path) -> list[int]:
    """Returns the rounds of the complete lines below the heading; none if there is no such file."""
    rounds: list[int] = []
    for number, line in enumerate(_read(path).split(b"\n")[1:-1], start=2):
        try:
            rounds.append(int(line.split(b",")[0]))
        except ValueError as error:
            raise FedprivError(f"{path}, line {number} is damaged; restore it from a copy") from error
    return rounds


def _read(path: Path) -> bytes:
    if path.exists():
        return files.read(path)
    return b""


def _full(path: Path, error: OSError) -> FedprivError:
    return FedprivError(f"{path} could not be written ({error.strerror}); free some space and resume the run")
