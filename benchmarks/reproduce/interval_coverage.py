"""Coverage of the intervals of `PrivateLogisticRegression` on correlated, unbalanced columns of Adult.

    FEDPRIV_DATA=... python benchmarks/reproduce/interval_coverage.py [--draws 200] [--epsilon 3 8] [--quick]

The rows are Adult's 32 561 training rows: age, years of education and weekly hours, mapped from public ranges to [-1,
1], and sex as 0 or 1 (`data_norm` 2). The coefficients are the best fit to the true incomes; the labels of each draw
are drawn from that model, 24 % of them 1. For each epsilon the table has the fraction of draws in which the "95 %"
interval contains the true coefficient, the median width of the intervals, and the width that `plan_intervals`
forecasts. `--quick` has two draws without noise.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fedpriv.errors import PromiseWarning
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression

EPSILONS = (1.0, 2.0, 3.0, 8.0, math.inf)
COLUMNS = ("age", "education", "hours", "sex", "intercept")
DATA_NORM = 2.0
Floats = NDArray[np.float64]


def adult(folder: Path) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns rows `[n, 4]`, and True for incomes above 50 000 dollars, `[n]`."""
    packed = folder / "adult" / "adult.data.gz"
    if packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode()
    else:
        text = packed.with_suffix("").read_text()
    fields = [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.count(",") == 14]
    numbers = np.array([[float(row[index]) for index in (0, 4, 12)] for row in fields])
    low, high = np.array([17, 1, 1]), np.array([90, 16, 99])
    sex = np.array([float(row[9] == "Male") for row in fields])
    x = np.hstack([2 * (numbers - low) / (high - low) - 1, sex[:, None]])
    return x, np.array([row[14].startswith(">50K") for row in fields])


def measured(x: Floats, chances: Floats, truth: Floats, epsilon: float, draws: int) -> tuple[Floats, Floats]:
    """Returns True for intervals that contain the true coefficient, and their widths, `[draws, 5]` each."""
    covered, widths = list[list[bool]](), list[list[float]]()
    for draw in range(draws):
        y = (np.random.default_rng(draw).random(len(x)) < chances).astype(int)
        model = PrivateLogisticRegression(
            epsilon, intervals=True, classes=[0, 1], data_norm=DATA_NORM, random_state=draw
        )
        rows = model.fit(x, y).coefficients()
        covered.append([row["low"] <= true <= row["high"] for row, true in zip(rows, truth, strict=True)])
        widths.append([row["high"] - row["low"] for row in rows])
    return np.array(covered, dtype=np.float64), np.array(widths)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PromiseWarning)  # about infinite intervals
    x, y = adult(Path(os.environ["FEDPRIV_DATA"]))
    plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, y)
    truth = np.append(plain.coef_[0], plain.intercept_)
    chances = plain.predict_proba(x)[:, 1]
    epsilons, draws = options.epsilon, options.draws
    if options.quick:
        epsilons, draws = (math.inf,), 2
    print(f"{draws} draws of {len(x)} labels, {chances.mean():.0%} of them 1; coefficients {truth.round(2)}")
    print("| epsilon | " + " | ".join(COLUMNS) + " | widths | forecast |")
    for epsilon in epsilons:
        covered, widths = measured(x, chances, truth, epsilon, draws)
        planned = PrivateLogisticRegression(epsilon, data_norm=DATA_NORM).plan_intervals(x, y)
        cells = [f"{share:.1%}" for share in covered.mean(0)]
        middle = " ".join(f"{width:.2f}" for width in np.median(widths, axis=0))
        forecast = " ".join(f"{row['width']:.2f}" for row in planned)
        print(f"| {epsilon:g} | " + " | ".join(cells) + f" | {middle} | {forecast} |", flush=True)


if __name__ == "__main__":
    main()
