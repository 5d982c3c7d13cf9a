"""An experiment of a paper: what it runs, our figures beside the paper's, a verdict, and a picture.

An experiment is a function of a `Bench`. It runs its points (one point is one setting and one seed) with `Bench.each`,
which shows a progress bar, uses several processes, and stores each point, so that an interrupted experiment continues.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, TypeVar

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedpriv.privacy.accounting import round_up

Size = Literal["quick", "default", "full"]
T = TypeVar("T")
NOT_GIVEN = "figure only"


@dataclass(frozen=True)
class Row:
    """One line of an experiment's table.

    Attributes:
        setting: What was run, e.g. "ObjT, epsilon 0.05".
        ours: Our figure: the mean over the seeds.
        paper: The paper's figure; `NOT_GIVEN` where the paper has only a picture.
        stated: The epsilon that the paper states, e.g. "0.05 per round"; empty for a run without noise.
        true: The epsilon of the whole run at the experiment's delta. `inf` if the run is not private; then `remark` has
            the reason.
        deviation: Standard deviation over the seeds.
        seeds: Number of seeds.
        remark: Anything that a reader of the line needs.
    """

    setting: str
    ours: float
    paper: float | str = NOT_GIVEN
    stated: str = ""
    true: float | None = None
    deviation: float = 0.0
    seeds: int = 1
    remark: str = ""

    @staticmethod
    def of(setting: str, values: Sequence[float], **more: Any) -> Row:
        """Returns the line of the mean and deviation of some values, one for each seed."""
        spread = stdev(values) if len(values) > 1 else 0.0
        return Row(setting, mean(values), deviation=spread, seeds=len(values), **more)

    def cells(self) -> tuple[str, ...]:
        """Returns the columns as text, in the order of `COLUMNS`."""
        ours = number(self.ours) + (f" ± {number(self.deviation)}" if self.seeds > 1 else "")
        paper = self.paper if isinstance(self.paper, str) else number(self.paper)
        return self.setting, ours, paper, self.stated, self._true(), self.remark

    def _true(self) -> str:
        if self.true is None:
            return ""
        return "inf (not private)" if math.isinf(self.true) else round_up(self.true)


COLUMNS = "setting", "ours", "paper", "epsilon stated", "true epsilon, whole run", "remark"


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes:
        measure: The quantity of `ours` and `paper`, with its unit.
        rows: The table.
        verdict: One sentence: whether the paper's finding holds, and at which epsilon.
        draw: Draws a picture like the paper's figure.
        notes: Differences from the paper: data, sizes, what was cut, how an unstated parameter was read.
    """

    measure: str
    rows: Sequence[Row]
    verdict: str
    draw: Callable[[Figure], None]
    notes: Sequence[str] = ()


def markdown(measure: str, rows: Sequence[Row], verdict: str, notes: Sequence[str]) -> str:
    """Returns the table, the verdict and the notes of an experiment."""
    lines = [f"Measured: {measure}.", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    lines += ["", f"**{verdict}**"]
    if notes:
        lines += ["", *(f"* {note}" for note in notes)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Experiment:
    """An entry of `python benchmarks/reproduce --list`.

    Attributes:
        name: The name on the command line, e.g. "admm-epsilon".
        paper: Authors and year.
        part: The paper's figure or table.
        question: What it shows, in a few words.
        data: Folders of $FEDPRIV_DATA that it reads; none for made-up data.
        minutes: Measured processor minutes of the quick, default and full run; None where it was not run whole.
        run: The experiment.
    """

    name: str
    paper: str
    part: str
    question: str
    data: tuple[str, ...]
    minutes: tuple[float | None, float | None, float | None]
    run: Callable[[Bench], Findings]


@dataclass
class Bench:
    """Runs the points of an experiment.

    Args:
        size: The effort: `quick` is under two minutes, `full` has the paper's own sizes.
        folder: Results go here; stored points go to `points/` in it.
        jobs: Number of processes.
    """

    size: Size
    folder: Path
    jobs: int = 1
    seconds: float = field(default=0.0, init=False)  # of processor time, of all points

    def pick(self, quick: T, default: T, full: T) -> T:
        """Returns the value for this size."""
        return {"quick": quick, "default": default, "full": full}[self.size]

    def each(self, work: Callable[..., Any], settings: Sequence[tuple[Any, ...]], what: str = "runs") -> list[Any]:
        """Returns `work(*setting)` for each setting, in order.

        Args:
            work: A function at the top level of a module; its result can be stored as JSON.
            settings: Its arguments, which can be stored as JSON.
            what: A word for the progress bar.
        """
        paths = [self.folder / "points" / f"{_digest(work, setting)}.json" for setting in settings]
        missing = [index for index, path in enumerate(paths) if not path.exists()]
        with _progress() as progress:
            task = progress.add_task(what, total=len(settings), completed=len(settings) - len(missing))
            for index, point in self._computed(work, [(index, settings[index]) for index in missing]):
                paths[index].parent.mkdir(parents=True, exist_ok=True)
                partial = paths[index].with_suffix(".partial")
                partial.write_text(json.dumps(point))
                partial.replace(paths[index])
                progress.advance(task)
        points = [json.loads(path.read_text()) for path in paths]
        self.seconds += sum(point["seconds"] for point in points)
        return [point["found"] for point in points]

    def _computed(
        self, work: Callable[..., Any], numbered: Sequence[tuple[int, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, Any]]:
        if self.jobs == 1 or len(numbered) < 2:
            for index, setting in numbered:
                yield index, _timed(work, setting)
            return
        with ProcessPoolExecutor(self.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            waiting = {pool.submit(_timed, work, setting): index for index, setting in numbered}
            try:
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def finish(self, experiment: Experiment, found: Findings) -> None:
        """Writes `table.md`, `result.json` and `picture.png`, and forgets the stored points."""
        self.folder.mkdir(parents=True, exist_ok=True)
        table = markdown(found.measure, found.rows, found.verdict, found.notes)
        (self.folder / "table.md").write_text(table)
        kept = {
            "name": experiment.name,
            "size": self.size,
            "seconds": round(self.seconds, 1),
            "measure": found.measure,
            "rows": [asdict(row) for row in found.rows],
            "verdict": found.verdict,
            "notes": list(found.notes),
        }
        (self.folder / "result.json").write_text(json.dumps(kept, indent=1))
        figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
        found.draw(figure)
        figure.savefig(self.folder / "picture.png")
        for path in (self.folder / "points").glob("*.json"):
            path.unlink()


def number(value: float) -> str:
    """Returns a number with three significant digits, and four from 10 to 100."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))) + (10 <= abs(value) < 100))}f}"


def _timed(work: Callable[..., Any], setting: tuple[Any, ...]) -> dict[str, Any]:
    start = time.process_time()
    found = work(*setting)
    return {"found": found, "seconds": time.process_time() - start}


def _digest(work: Callable[..., Any], setting: tuple[Any, ...]) -> str:
    named = json.dumps([work.__module__, work.__qualname__, setting])
    return f"{work.__name__}-{blake2b(named.encode(), digest_size=8).hexdigest()}"


def _progress() -> Progress:
    names = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*names, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
