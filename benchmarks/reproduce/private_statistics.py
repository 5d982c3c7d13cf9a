"""Errors of private means, deviations and quartiles next to OpenDP and diffprivlib, at one total epsilon.

    FEDPRIV_DATA=... python benchmarks/reproduce/private_statistics.py [--peer PYTHON] [--times 300] [--quick]

Columns: age and cholesterol of the four hospitals (cholesterol without missing values and zeros), age and capital gain
of Adult (ten owners). One replaced row is protected (unit sample, replace_one), the number of rows is public, and
bounds are the same for all. fedpriv asks `Quantiles`, which answers all five numbers; delta is 1e-5. OpenDP and
diffprivlib are central: one trusted party has all rows. `private_statistics_peers.py` has their queries and the
division of their budget. "OpenDP" and "diffprivlib" have delta 0, a stronger guarantee; "OpenDP, zCDP" has delta 1e-5.

A cell is the rms error of the mean, the rms error of the deviation and the mean absolute error of the quartiles. For
fedpriv, vectors and plan are those of the library, and only the noise is drawn again; `tests/test_benchmarks.py`
compares its deviation with that of runs. `--peer` names an interpreter with both libraries (`make bench-statistics`
creates one). `--quick` has few repetitions at epsilon 1.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedpriv as fp
from fedpriv.statistics import Mean, Quantiles, Statistic

PEERS = Path(__file__).with_name("private_statistics_peers.py")
EPSILONS, DELTA = (0.1, 0.3, 1.0), 1e-5
QUARTILES = ("25 %", "50 %", "75 %")
TRUSTS: Mapping[str, Any] = {"sums": fp.Central(), "pairwise": fp.Pairwise(1, 100), "local": fp.Local()}
LIBRARIES = ("OpenDP", "OpenDP, zCDP", "OpenDP, tree", "diffprivlib")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """A column of several owners.

    Attributes:
        name: Name in the table.
        parts: The values of each owner.
        bounds: Public range.
        bins: Number of bins, for fedpriv and for the tree of OpenDP.
        step: Distance of the candidates for quantiles of OpenDP.
    """

    name: str
    parts: Sequence[Floats]
    bounds: tuple[float, float]
    bins: int
    step: float

    @property
    def values(self) -> Floats:
        """All values."""
        return np.concatenate(self.parts)

    @property
    def exact(self) -> Floats:
        """Mean, deviation and quartiles without noise, `[5]`."""
        values = self.values.clip(*self.bounds)
        quartiles = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")
        return np.array([values.mean(), values.std(), *quartiles])

    def task(self) -> dict[str, Any]:
        """Returns what the other libraries need."""
        low, high = self.bounds
        return {
            "values": self.values.clip(low, high).tolist(),
            "bounds": [low, high],
            "edges": np.linspace(low, high, self.bins + 1).tolist(),
            "candidates": np.arange(low, high + self.step, self.step).tolist(),
        }


def columns(folder: Path) -> list[Column]:
    """Returns the columns of the table."""
    hospitals = [read_heart(path) for path in sorted((folder / "heart").glob("*.csv"))]
    cholesterol = [part[part > 0] for _, part in hospitals]
    age, gain = read_adult(folder / "adult")
    return [
        Column("heart age", [part for part, _ in hospitals], (0.0, 120.0), 120, 1.0),
        Column("cholesterol", [part for part in cholesterol if len(part)], (0.0, 640.0), 128, 5.0),
        Column("Adult age", np.array_split(age, 10), (0.0, 120.0), 120, 1.0),
        Column("capital gain", np.array_split(gain, 10), (0.0, 100_000.0), 128, 100.0),
    ]


def read_heart(path: Path) -> tuple[Floats, Floats]:
    """Returns age and cholesterol of a hospital; missing cholesterol is 0."""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    return np.array([float(row["age"]) for row in rows]), np.array([float(row["chol"] or 0) for row in rows])


def read_adult(folder: Path) -> tuple[Floats, Floats]:
    """Returns age and capital gain."""
    packed = folder / "adult.data.gz"
    if packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode()
    else:
        text = packed.with_suffix("").read_text()
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 14]
    return np.array([float(row[0]) for row in rows]), np.array([float(row[10]) for row in rows])


def simulate(column: Column, statistic: Statistic, privacy: fp.Privacy, times: int) -> Floats:
    """Returns mean, deviation and quartiles with new noise, `[times, 5]`; NaN where there is no answer.

    One run of the library gives the deviation of the noise in the mean of all vectors.
    """
    tables = [{"x": part} for part in column.parts]
    deviation = fp.describe(tables, [statistic], privacy).deviation * statistic.radius
    n = len(column.values)
    exact = np.concatenate([statistic.vectors(table) for table in tables]).mean(0)
    draws = np.random.default_rng(0)
    drawn = list[list[float]]()
    for _ in range(times):
        answer = statistic.answer(exact + deviation * draws.standard_normal(len(exact)), deviation, n)
        labels = ("mean", "sd", *QUARTILES)
        drawn.append([answer.values[label].value if label in answer.values else np.nan for label in labels])
    return np.array(drawn)


def errors(drawn: Any, exact: Floats) -> str:
    """Returns a cell: rms errors of mean and deviation, mean absolute error of quartiles."""
    difference = np.asarray(drawn, dtype=np.float64) - exact
    answered = ~np.isnan(difference).any(1)
    if answered.mean() < 0.95:
        return f"no answer in {1 - answered.mean():.0%}"
    difference = difference[answered]
    rms = np.sqrt(np.square(difference[:, :2]).mean(0))
    return " / ".join(f"{number:.2g}" for number in (*rms, np.abs(difference[:, 2:]).mean()))


def ask_peers(python: str, task: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the draws of the other libraries; prints a note and returns None if an interpreter lacks them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.json"
        path.write_text(json.dumps(task))
        # without this interpreter's paths: the other has its own numpy
        done = subprocess.run([python, "-I", str(PEERS), str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
        print(f"OpenDP and diffprivlib were not run by {Path(python).name} ({reason}); see make bench-statistics")
        return None
    return json.loads(done.stdout)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    epsilons, times = ((1.0,), 10) if options.quick else (EPSILONS, options.times)
    asked = columns(Path(os.environ["FEDPRIV_DATA"]))
    task = {"epsilons": epsilons, "delta": DELTA, "times": times}
    peers = ask_peers(options.peer, task | {"columns": {column.name: column.task() for column in asked}})
    print(f"{times} repetitions; {peers['versions'] if peers else 'fedpriv only'}")
    names = [f"fedpriv, {trust}" for trust in TRUSTS] + (list(LIBRARIES) if peers else [])
    print_heading("mean / sd / quartiles", names)
    for column in asked:
        for epsilon in epsilons:
            statistic = Quantiles("x", column.bounds, bins=column.bins)
            cells = [
                errors(
                    simulate(column, statistic, fp.Privacy(epsilon=epsilon, delta=DELTA, trust=trust), times),
                    column.exact,
                )
                for trust in TRUSTS.values()
            ]
            if peers:
                drawn = peers["tables"][column.name][str(epsilon)]
                cells += [errors(drawn[library], column.exact) for library in LIBRARIES]
            print_row(column, epsilon, cells)
    names = [f"fedpriv, {trust}" for trust in TRUSTS] + (["OpenDP", "diffprivlib"] if peers else [])
    print_heading("a mean alone", names)
    for column in asked:
        for epsilon in epsilons:
            cells = list[str]()
            for trust in TRUSTS.values():
                privacy = fp.Privacy(epsilon=epsilon, delta=DELTA, trust=trust)
                drawn = simulate(column, Mean("x", column.bounds), privacy, times)[:, 0]
                cells.append(rms(drawn, column.exact[0]))
            if peers:
                cells += [rms(drawn, column.exact[0]) for drawn in peers["means"][column.name][str(epsilon)].values()]
            print_row(column, epsilon, cells)


def rms(drawn: Any, exact: float) -> str:
    """Returns the rms error."""
    return f"{np.sqrt(np.mean(np.square(np.asarray(drawn) - exact))):.2g}"


def print_heading(title: str, names: Sequence[str]) -> None:
    """Prints the heading of a table."""
    print(f"\n| {title} | epsilon | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 2) + "|")


def print_row(column: Column, epsilon: float, cells: Sequence[str]) -> None:
    """Prints a line of a table."""
    print(f"| {column.name} | {epsilon:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
