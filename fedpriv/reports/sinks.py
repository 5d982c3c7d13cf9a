"""Targets for round reports: metrics files, TensorBoard, and trackers (for `keep` see `fedpriv.runs.line_files`)."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.errors import FedprivError
from fedpriv.evaluation import metrics
from fedpriv.reports.tags import list_scalars
from fedpriv.reports.trackers import MLflow, WandB
from fedpriv.runs import METRICS, MetricsFile, ProgressDisplay, RoundLines
from fedpriv.settings import validate_arguments
from fedpriv.storage import files, strict_json

if TYPE_CHECKING:
    from fedpriv.runs import RoundReport

__all__ = ["Csv", "Jsonl", "MLflow", "ProgressDisplay", "TensorBoard", "WandB"]


@validate_arguments("sinks")
class Jsonl:
    """A file like `metrics.jsonl`: one JSON object a round, without times. A number that is not finite is null.

    A run with a folder writes its own `metrics.jsonl`: a sink with that path writes nothing.

    Args:
        path: The file.
        keep: Keep lines of an existing file up to this round; 0 starts a new file.

    Raises:
        FedprivError: If the file cannot be written.

    Examples:
        >>> import fedpriv, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sink = fedpriv.sinks.Jsonl(Path(folder) / "rounds.jsonl")
        ...     sink.write(fedpriv.RoundReport(1, 5, {"test_accuracy": 0.5}, epsilon=0.4, target=1.0, releases=1))
        ...     sink.close()
        ...     len((Path(folder) / "rounds.jsonl").read_text().splitlines())
        1
    """

    def __init__(self, path: str | Path, keep: float = 0) -> None:
        self._path = Path(path)
        self._file = None
        if not self._is_written_by_a_run():
            self._file = MetricsFile(self._path, keep)

    def _is_written_by_a_run(self) -> bool:
        """True if the file is the one that a run writes in its own folder, next to its ledger."""
        return self._path.name == METRICS and self._path.with_name("ledger.jsonl").exists()

    def write(self, report: RoundReport) -> None:
        """Appends one round, unless the file has it."""
        if self._file is not None and not self._is_written_by_a_run():
            self._file.write(report)

    def close(self) -> None:
        """Waits until all lines are on the physical disk."""
        if self._file is not None and not self._is_written_by_a_run():
            self._file.sync()


@validate_arguments("sinks")
class Csv:
    """`metrics.csv`: the rounds as a table; values that were not measured or are not finite are empty.

    If lines of an existing file are kept, its columns are also kept, even if this version has other metrics.

    Args:
        path: The file.
        keep: Keep lines of an existing file up to this round; 0 starts a new file.
        more: Names of further columns, e.g. `test_auroc`, or `test_f1` for a user-defined metric.

    Raises:
        FedprivError: If the file cannot be written.

    Examples:
        >>> import fedpriv, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sink = fedpriv.sinks.Csv(Path(folder) / "rounds.csv")
        ...     sink.write(fedpriv.RoundReport(1, 5, {"test_accuracy": 0.5}, epsilon=0.4, target=1.0, releases=1))
        ...     sink.close()
        ...     len((Path(folder) / "rounds.csv").read_text().splitlines())
        2
    """

    def __init__(self, path: str | Path, keep: float = 0, more: Sequence[str] = ()) -> None:
        path = Path(path)
        columns = ["round", "epsilon", "test_loss", "test_accuracy", *more]
        self._lines = RoundLines(path, _csv_rounds(path), keep, ",".join(dict.fromkeys(columns)))
        self._columns = self._lines.heading.split(",")

    def write(self, report: RoundReport) -> None:
        """Appends one round, unless the file has it."""
        text = io.StringIO()
        row = {"round": report.round, "epsilon": report.epsilon, **strict_json.to_plain(report.metrics)}
        csv.writer(text, lineterminator="\n").writerow([row.get(name, "") for name in self._columns])
        self._lines.write(report, text.getvalue())

    def close(self) -> None:
        """Waits until all lines are on the physical disk."""
        self._lines.sync()


@validate_arguments("sinks")
class TensorBoard:
    """TensorBoard events: test metrics, epsilon, its fraction of the target, and a text if training fails.

    The most important test metric, such as the accuracy, is also in the first group, `at_a_glance`.

    Runs with constraints also have the largest violation and the largest multiplier of each round.

    All events have the time at which the log was opened, since the time of a round would reveal the number of drawn
    examples or clients.

    Args:
        folder: Folder of the event files.
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
        for tag, value in list_scalars(report.metrics, report.epsilon, report.target).items():
            self._writer.add_scalar(tag, value, report.round, self._opened)
        headline = next((row.name for row in metrics.list_headline_metrics() if row.name in report.metrics), None)
        if headline is not None:  # TensorBoard sorts groups by name, and opens the first ones only
            tag = f"at_a_glance/{headline}"
            self._writer.add_scalar(tag, report.metrics[headline], report.round, self._opened)
        if report.warning:
            self.text("warning", report.warning, report.round)

    def close(self) -> None:
        """Writes all events to the disk."""
        self._writer.close()


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
