"""Heart disease in four hospitals with local trust: mean accuracy over hospitals, compared with FLamby's results.

    FEDPRIV_DATA=<folder with heart/> python benchmarks/reproduce/heart.py      # the table of docs/results.md
    python benchmarks/reproduce/heart.py stand-in                               # choice of settings, without data

Settings are chosen on synthetic hospitals (`stand-in`): patients with columns of the same kinds, ill by weights that
are drawn anew each time. Ranges and replacements of missing values are public limits, see fedpriv/data/heart.py.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import warnings
from pathlib import Path

import numpy as np
import scipy

from fedpriv.config import build, load_config
from fedpriv.errors import PromiseWarning

CONFIG = Path(__file__).parents[2] / "configs" / "heart_hospitals.yaml"
SETTINGS = {
    "none": ["rounds=300", "strategy.learning_rate=1"],
    "1": [],
    "0.1": ["privacy.epsilon=0.1", "rounds=3", "strategy.learning_rate=1"],
}
VARIANTS = {
    "pairwise, one colluder": [],
    "local": ["privacy.trust=local"],
    "secure aggregation": ["privacy.trust={secure_aggregation: {min_honest: 4}}"],
    "pairwise, FLamby's relation (add_remove)": ["privacy.relation=add_remove"],
    "pairwise, FLamby's patients only": ["data.train_rows=complete"],
    "pairwise, tested on a third of all patients": ["data.test_rows=all"],
    "pairwise, one intercept": ["data.intercept=common"],
    "pairwise, flags not centred": ["data.centered=false"],
}
HOSPITALS = (199, 205, 107, 155)  # train patients


def hospital_mean(overrides: list[str], seed: int) -> float:
    """Returns the mean over the four hospitals of the accuracy on each hospital's test patients."""
    training = build(load_config(CONFIG, [*overrides, f"seed={seed}", f"secret_seed={seed}"]))
    reports = list(training)
    return float(reports[-1].metrics["client_test_accuracy_mean"])


def table(seeds: int = 30) -> None:
    """Prints for each cell the mean over five seeds, and in brackets mean and standard deviation over thirty."""
    warnings.simplefilter("ignore", PromiseWarning)  # the seeds of the noise are given
    print("| trust | no privacy | epsilon 1 | epsilon 0.1 |\n|---|---|---|---|")
    for name, variant in VARIANTS.items():
        cells: list[str] = []
        for epsilon, settings in SETTINGS.items():
            if epsilon == "none":
                of_data = [text for text in variant if not text.startswith("privacy.")]
                cells.append(f"{hospital_mean(['privacy={noise_on: none}', *of_data, *settings], 0):.3f}")
                continue
            values = [hospital_mean([*variant, *settings], seed) for seed in range(seeds)]
            spread = f"{statistics.mean(values):.3f}, {statistics.stdev(values):.3f}"
            cells.append(f"{statistics.mean(values[:5]):.3f} ({spread})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def made_up(
    rng: np.random.Generator, n_tests: int = 400
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns train and test patients of four hospitals: five numbers, five categories, ill by random log-odds.

    Features are centred, and each hospital has a flag of 0.5, as in the configuration.
    """
    kinds = (2, 4, 2, 3, 2)
    shares = [rng.dirichlet(np.full(count, 3.0)) for count in kinds]
    middle = rng.uniform(-0.3, 0.3, 5)
    weights = 2.2 * rng.standard_normal(5 + sum(kinds))

    def patients(n: int, shift: np.ndarray, of_hospital: list[np.ndarray]) -> np.ndarray:
        numbers = np.clip(shift + 0.45 * rng.standard_normal((n, 5)), -1, 1)
        flags = [np.eye(len(p))[rng.choice(len(p), n, p=p)] - 1 / len(p) for p in of_hospital]
        return np.concatenate([numbers, *flags], 1)

    threshold = float(np.median(patients(2000, middle, shares) @ weights))
    hospitals = []
    for index, n in enumerate(HOSPITALS):
        own_shares = [0.8 * share + 0.2 * rng.dirichlet(np.full(len(share), 3.0)) for share in shares]
        x = patients(n + n_tests, middle + 0.1 * rng.standard_normal(5), own_shares)
        logits = x @ weights - threshold + rng.standard_normal()
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-logits))).astype(float)
        flags = np.zeros((len(x), 4))
        flags[:, index] = 0.5
        x = np.concatenate([x, flags], 1)
        hospitals.append((x[:n], y[:n], x[n:], y[n:]))
    return hospitals


def accuracy_of(hospitals, mu: float, rounds: int, rate: float, bound: float, rng, runs: int = 16) -> float:
    """Mean accuracy of noisy gradient descent, written out: pairwise noise of four hospitals with one colluder."""
    x = np.concatenate([train for train, *_ in hospitals])
    y = np.concatenate([labels for _, labels, *_ in hospitals])
    exposure = 1 / 3 + (1 - 1 / 3) / (1 + 10**2 * 3)  # docs/threat_model.md
    scale = 2 * bound * math.sqrt(rounds) / mu * math.sqrt(len(hospitals) * exposure) / len(x)
    norms = np.linalg.norm(x, axis=1)
    w = np.zeros((runs, x.shape[1]))
    for _ in range(rounds):
        errors = scipy.special.expit(w @ x.T) - y
        errors *= np.minimum(1, bound / np.maximum(np.abs(errors) * norms, 1e-12))
        w -= rate * (errors @ x / len(x) + scale * rng.standard_normal(w.shape))
    return float(np.mean([((w @ test.T > 0) == (labels > 0.5)).mean() for *_, test, labels in hospitals]))


def stand_in() -> None:
    rng = np.random.default_rng(1)
    sets = [made_up(rng) for _ in range(40)]
    grids = {1.0: ((10, 30, 60), (3, 10, 30)), 0.1: ((1, 3, 10), (0.3, 1, 3))}
    for epsilon, (all_rounds, rates) in grids.items():
        mu = gaussian_mu(epsilon, 1e-4)
        print(f"epsilon {epsilon}: accuracy, clip, rounds, learning rate")
        scores = [
            (statistics.mean(accuracy_of(one, mu, rounds, rate, bound, rng) for one in sets), bound, rounds, rate)
            for bound, rounds, rate in itertools.product((0.15, 0.3, 1.0), all_rounds, rates)
        ]
        for score, bound, rounds, rate in sorted(scores, reverse=True)[:6]:
            print(f"  {score:.3f}  {bound}  {rounds}  {rate}")


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of Gaussian differential privacy with this epsilon and delta (Dong, Roth and Su, 2022, corollary 1)."""

    def excess(mu: float) -> float:
        cdf = scipy.stats.norm.cdf
        return cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * cdf(-epsilon / mu - mu / 2) - delta

    return scipy.optimize.brentq(excess, 1e-3, 50)


if __name__ == "__main__":
    if "stand-in" in sys.argv:
        stand_in()
    else:
        table()
