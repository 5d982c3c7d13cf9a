"""What private means and deviations gain: Adult with 10 owners, digits with 5, heart disease in four hospitals.

    FEDPRIV_DATA=<folder with adult/ and heart/> python benchmarks/reproduce/standardising.py [--quick] [--only adult]

Each cell is the test accuracy (mean and standard deviation over seeds of the noise), for the better of two step sizes,
which a private user could not choose on these test rows; all columns have this advantage. `public ranges` maps the
range of each numeric column to [-1, 1]. `private` spends 10 % of the squared ratio of sensitivity to noise on means and
deviations (on means for digits), and has the same total epsilon. `exact` uses the exact ones, which is not private.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

import fedpriv as fp
from fedpriv import data, models
from fedpriv.data.table_encoder import Table, TableEncoder
from fedpriv.privacy import Trust
from fedpriv.privacy.accounting import gaussian

SHARE = 0.1
DELTA = 1e-5
VARIANTS = ("public ranges", "private", "exact")
Scales = Mapping[str, tuple[float, float]]

ADULT_HEADINGS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
ADULT_NUMBERS = {
    "age": (0.0, 120.0),
    "fnlwgt": (0.0, 1_500_000.0),
    "education-num": (0.0, 20.0),
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 10_000.0),
    "hours-per-week": (0.0, 100.0),
}
HEART_NUMBERS = {
    "age": (0.0, 120.0),
    "trestbps": (0.0, 300.0),
    "chol": (0.0, 640.0),
    "thalach": (0.0, 250.0),
    "oldpeak": (-5.0, 10.0),
}
HEART_CATEGORIES = {"sex": [0, 1], "cp": [1, 2, 3, 4], "fbs": [0, 1], "restecg": [0, 1, 2], "exang": [0, 1]}
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


class Task:
    """Tables of owners, a public test table, and what is known about their columns.

    Args:
        owners: A table for each owner.
        test: The test table.
        settings: Arguments of `TableEncoder`, with `numbers`.
        trust: Trust assumption.
    """

    def __init__(self, owners: Sequence[Table], test: Table, settings: dict[str, Any], trust: Trust) -> None:
        self.owners = owners
        self.test = test
        self.settings = settings
        self.trust = trust
        self._encoded: dict[str, tuple[list[TensorDataset], TensorDataset]] = {}

    def accuracy(self, variant: str, epsilon: float, seed: int, rounds: int, step: float) -> float:
        """Trains once, and returns the accuracy on the test rows."""
        ratio = gaussian.compute_ratio(epsilon, DELTA)
        scales: Scales = {}
        share = 0.0
        runs = []
        if variant == "private":
            share = SHARE
            scaler = self.scaler(gaussian.compute_epsilon(ratio * math.sqrt(share), DELTA), seed)
            runs.append(scaler.result_)
            scales = scaler.scales_
        elif variant == "exact":
            scales = self.exact()
        datasets, test = self.encoded(scales)
        rest = gaussian.compute_epsilon(ratio * math.sqrt(1 - share), DELTA)
        result = fp.train(
            fp.make_clients(
                models.LogisticRegression(datasets[0].tensors[0].shape[1]), models.Loss(models.logistic), datasets
            ),
            fp.gradient_descent(step, momentum=0.8),
            fp.Privacy(epsilon=rest, delta=DELTA, clip=fp.Clip(1.0), trust=self.trust),
            rounds=rounds,
            test=test,
            evaluate_every=rounds,
            secret_seed=seed,
            progress=False,
        )
        assert fp.total([*runs, result]).epsilon <= epsilon * 1.002
        return float(result.test_accuracy or 0.0)

    def encoded(self, scales: Scales) -> tuple[list[TensorDataset], TensorDataset]:
        """Returns the owners' examples and the test examples; the same scales are applied once."""
        key = repr(scales)
        if key not in self._encoded:
            encoder = TableEncoder(**self.settings, scales=scales)
            self._encoded[key] = [encoder.encoded(owner) for owner in self.owners], encoder.encoded(self.test)
        return self._encoded[key]

    def scaler(self, epsilon: float, seed: int) -> fp.PrivateScaler:
        """Returns the private scaler of the numeric columns."""
        numbers = self.settings["numbers"]
        tables = [{name: owner.columns[name] for name in numbers} for owner in self.owners]
        return fp.PrivateScaler(numbers, epsilon, DELTA, trust=self.trust, random_state=seed).fit(tables)

    def exact(self) -> Scales:
        """Returns the exact means and deviations, which are not private."""
        scales = {}
        for name, (low, high) in self.settings["numbers"].items():
            texts = [text for owner in self.owners for text in owner.columns[name] if text]
            values = np.clip(np.array(texts, dtype=float), low, high)
            scales[name] = (float(values.mean()), float(values.std()) or 1.0)
        return scales


def adult() -> Task:
    """Returns Adult: 6 numeric and 6 categorical columns of the rows without missing values, with 10 owners."""
    folder = Path(os.environ["FEDPRIV_DATA"]) / "adult"
    train, test = (read_adult(folder, name) for name in ("adult.data", "adult.test"))
    names = ("workclass", "marital-status", "occupation", "relationship", "race", "sex")
    everything = [*train, *test]
    categories = {name: sorted({row[ADULT_HEADINGS.index(name)] for row in everything}) for name in names}
    settings = {"label": "income", "classes": ["<=50K", ">50K"], "numbers": ADULT_NUMBERS, "categories": categories}
    order = np.random.default_rng(0).permutation(len(train))
    owners = [as_table([train[row] for row in part], ADULT_HEADINGS) for part in np.array_split(order, 10)]
    return Task(owners, as_table(test, ADULT_HEADINGS), settings, fp.Central())


def read_adult(folder: Path, name: str) -> list[list[str]]:
    """Returns the rows of a file without missing values."""
    path = folder / name
    text = path.read_text() if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes()).decode()
    rows = [[cell.strip().rstrip(".") for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == len(ADULT_HEADINGS) and "?" not in row]


def heart() -> Task:
    """Returns the four hospitals; a third of each one's patients is for testing."""
    train, test = [], []
    for number, name in enumerate(HOSPITALS):
        with (Path(os.environ["FEDPRIV_DATA"]) / "heart" / f"{name}.csv").open(newline="") as file:
            heading, *rows = csv.reader(file)
        for row in rows:
            for column in ("trestbps", "chol"):  # 0 is impossible: it was written for a missing measurement
                place = heading.index(column)
                row[place] = "" if row[place] == "0" else row[place]
            row[heading.index("num")] = "0" if row[heading.index("num")] == "0" else "1"
        order = np.random.default_rng(number).permutation(len(rows))
        cut = len(rows) // 3
        train.append(as_table([rows[row] for row in order[cut:]], heading))
        test += [rows[row] for row in order[:cut]]
    middles = {name: (low + high) / 2 for name, (low, high) in HEART_NUMBERS.items()}
    settings = {
        "label": "num",
        "classes": [0, 1],
        "numbers": HEART_NUMBERS,
        "categories": HEART_CATEGORIES,
        "missing": {"fbs": 0, "restecg": 0, "exang": 0},
        "indicators": [*middles],
    }
    return Task(train, as_table(test, heading), settings, fp.Pairwise(1, 100.0))


def as_table(rows: Sequence[Sequence[str]], names: Sequence[str]) -> Table:
    """Returns rows as a table of text."""
    return Table("rows", dict(zip(names, zip(*rows, strict=True), strict=True)), first=1)


class Mean(torch.nn.Module):
    """Distance of a point from an example: the gradient of half its square is the point minus the example."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.point = torch.nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the distances `[b, size]`."""
        return self.point - x


def digits(variant: str, epsilon: float, seed: int, rounds: int, step: float) -> float:
    """Trains a linear model on digits of norm 1, as in docs/howto/own_data.md, and returns the test accuracy."""
    split = data.load("digits", flat=True, transforms=["unit"])
    parts = data.partition("iid", data.labels_of(split.train), 5, torch.Generator().manual_seed(1))
    owners = [Subset(split.train, part.tolist()) for part in parts]
    centre = torch.zeros(64)
    ratio, share, runs = gaussian.compute_ratio(epsilon, DELTA), 0.0, []
    if variant == "private":
        share = SHARE
        half_square = models.Loss(lambda distances, targets: distances.square().sum(1) / 2)
        privacy = fp.Privacy(noise_multiplier=1 / (ratio * math.sqrt(share)), clip=fp.Clip(1), trust=fp.Central())
        clients = fp.make_clients(Mean(64), half_square, owners)
        runs.append(
            fp.train(clients, fp.gradient_descent(1), privacy, rounds=1, secret_seed=seed + 1000, progress=False)
        )
        centre = runs[0].params
    elif variant == "exact":
        centre = split.train.tensors[0].mean(0)

    def moved(x: torch.Tensor, y: torch.Tensor) -> TensorDataset:
        return TensorDataset(torch.nn.functional.normalize(x - centre) if variant != "public ranges" else x, y)

    result = fp.train(
        fp.make_clients(
            models.SoftmaxRegression(64, 10),
            models.Loss(models.cross_entropy),
            [moved(*(torch.stack(column) for column in zip(*owner, strict=True))) for owner in owners],
        ),
        fp.gradient_descent(step, momentum=0.8),
        fp.Privacy(
            epsilon=gaussian.compute_epsilon(ratio * math.sqrt(1 - share), DELTA),
            delta=DELTA,
            clip=fp.Clip(0.2),
            trust=fp.Central(),
        ),
        rounds=rounds,
        test=moved(*split.test.tensors),
        evaluate_every=rounds,
        secret_seed=seed,
        progress=False,
    )
    assert fp.total([*runs, result]).epsilon <= epsilon * 1.002
    return float(result.test_accuracy or 0.0)


Trial = Callable[[str, float, int, int, float], float]


def table(name: str, trial: Trial, epsilons: Sequence[float], rounds: int, steps: Sequence[float], seeds: int) -> None:
    """Prints the table of a data set."""
    print(
        f"\n| {name}, {rounds} rounds, epsilon | {' | '.join(VARIANTS)} |\n|{'---|' * (1 + len(VARIANTS))}", flush=True
    )
    for epsilon in epsilons:
        cells = []
        for variant in VARIANTS:
            runs = [[trial(variant, epsilon, seed, rounds, step) for seed in range(seeds)] for step in steps]
            best = max(runs, key=np.mean)
            cells.append(f"{100 * np.mean(best):.1f} ± {100 * np.std(best):.1f} (step {steps[runs.index(best)]:g})")
        print(f"| {epsilon:g} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["adult", "digits", "heart"], default=None)
    parser.add_argument("--epsilons", type=float, nargs="+", default=None, help="instead of those of docs/howto")
    parser.add_argument("--quick", action="store_true", help="one epsilon, seed and step size, 3 rounds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", fp.errors.PromiseWarning)  # the seeds of the noise are given
    trials: dict[str, Callable[[], tuple[Trial, tuple[float, ...], int, tuple[float, ...]]]] = {
        "adult": lambda: (adult().accuracy, (0.1, 0.3, 1.0), 40, (2.0, 6.0)),
        "digits": lambda: (digits, (1.0,), 30, (10.0, 30.0)),
        "heart": lambda: (heart().accuracy, (0.3, 1.0), 20, (0.3, 1.0)),
    }
    for name, make in trials.items():
        if options.only in (None, name):
            trial, epsilons, rounds, steps = make()
            epsilons = tuple(options.epsilons or epsilons)
            if options.quick:
                table(name, trial, epsilons[:1], 3, steps[:1], 1)
            else:
                table(name, trial, epsilons, rounds, steps, 3)


if __name__ == "__main__":
    main()
