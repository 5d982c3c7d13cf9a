"""Measures the cost of rounding noise as a real number, relative to float64 noise, in the same run.

    python benchmarks/speed/exact_noise.py [--repeats N] [--markdown FILE]

Processor time of one thread for the noise of one query: drawn, added and rounded. The smallest of some measurements, in
nanoseconds per entry. Also the number of entries among ten million that need multiple precision. For noise over time,
the total for all rounds, including multiple precision, since the noise of a later round depends on all earlier ones.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

import numpy as np
import torch

import fedpriv as fp
from fedpriv.privacy.exact_rounding import add_and_round
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.real_noise import GaussianRows, LaplaceRows
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

RANDOM = Randomness(0, 1, run="benchmark")
RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
SHAPES = [(1, 1_000_000), (10, 100_000), (100, 29_034), (100, 7_850), (1000, 100)]


OVER_TIME: dict[str, fp.BSR | fp.BLT] = {"band of 8": fp.BSR(8), "band of 32": fp.BSR(32), "4 buffers": fp.BLT(4)}
RUNS = [(1, 1_000_000, 30), (10, 7_850, 100), (10, 7_850, 1000), (1000, 100, 100)]  # rows, numbers, rounds


@dataclass(frozen=True)
class Gaussian64(fp.Gaussian):
    """The same noise, in a class unknown to fedpriv: rounded in float64."""


@dataclass(frozen=True)
class Laplace64(fp.Laplace):
    """The same noise, in a class unknown to fedpriv: rounded in float64."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--smoke", action="store_true", help="one tiny shape")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| noise | rows | numbers a row | float64, ns | exact, ns | ratio |", "|---|---|---|---|---|---|"]
    for rows, dim in [(2, 50)] if options.smoke else SHAPES:
        for name, plain, exact in (
            ("Gaussian", Gaussian64(), fp.Gaussian()),
            ("Laplace", Laplace64(), fp.Laplace()),
        ):
            seconds = nanoseconds(rows, dim, [plain, exact], options.repeats)
            ratio = seconds[1] / seconds[0]
            lines.append(f"| {name} | {rows} | {dim} | {seconds[0]:.2f} | {seconds[1]:.2f} | {ratio:.2f} |")
    lines += ["", "| over time | rows | numbers a row | rounds | float64, ns | exact, ns | ratio |", "|---" * 7 + "|"]
    for rows, dim, rounds in [(2, 50, 3)] if options.smoke else RUNS:
        for name, matrix in OVER_TIME.items():
            seconds = nanoseconds_over_time(rows, dim, rounds, matrix)
            cells = f"{seconds[0]:.2f} | {seconds[1]:.2f} | {seconds[1] / seconds[0]:.2f}"
            lines.append(f"| {name} | {rows} | {dim} | {rounds} | {cells} |")
    for name, kind in (("Gaussian", GaussianRows), ("Laplace", LaplaceRows)):
        lines.append(f"\n{name}: {undecided(kind, 1000 if options.smoke else 1_000_000)} of ten million numbers")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.markdown:
        options.markdown.write_text(text)


def nanoseconds(rows: int, dim: int, mechanisms: list[fp.Mechanism], repeats: int) -> list[float]:
    """Returns the smallest time per entry of each mechanism; mechanisms alternate."""
    sums = torch.randn(rows, dim, dtype=torch.float64)
    seconds = [float("inf")] * len(mechanisms)
    for round_index in range(repeats):
        for index, mechanism in enumerate(mechanisms):
            record = replace(RECORD, round=round_index)
            start = process_time()
            add_noise(sums, [1.3] * rows, mechanism, record, RANDOM, list(range(rows)))
            seconds[index] = min(seconds[index], process_time() - start)
    return [1e9 * least / (rows * dim) for least in seconds]


def nanoseconds_over_time(rows: int, dim: int, rounds: int, matrix: fp.BSR | fp.BLT) -> list[float]:
    """Returns the mean time per entry in a run of this many rounds, in float64 and exactly; the two alternate."""
    sums = torch.randn(rows, dim, dtype=torch.float64)
    seconds = [0.0, 0.0]
    mechanisms = [Gaussian64(), fp.Gaussian()]
    histories = [NoiseHistory(matrix.factor(max(rounds, 100), 1)) for _ in mechanisms]
    for round_index in range(rounds):
        for index, mechanism in enumerate(mechanisms):
            record = replace(RECORD, round=round_index)
            start = process_time()
            add_noise(sums, [1.3] * rows, mechanism, record, RANDOM, list(range(rows)), past=histories[index])
            seconds[index] += process_time() - start
    return [1e9 * total / (rows * dim * rounds) for total in seconds]


def undecided(kind: type[GaussianRows] | type[LaplaceRows], dim: int) -> int:
    """Returns how many entries of ten rows need multiple precision, with the finest grid."""
    keys = [key.tobytes() for key in RANDOM.keys("noise", 0, 0, list(range(10))).numpy()]
    noise = kind(keys, [1.0] * 10, dim)
    grid, values, result = np.array([[2.0**-20]]), np.zeros((1, dim)), np.empty((1, dim))
    return sum(add_and_round(values, noise, slice(row, row + 1), grid, result) for row in range(10))


if __name__ == "__main__":
    main()
