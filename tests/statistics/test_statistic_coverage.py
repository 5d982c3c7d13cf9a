"""95 % intervals cover the statistic of the rows in about 95 % of repetitions, by label, size and epsilon."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.privacy.accounting import gaussian
from fedpriv.statistics import Correlations, Counts, GroupMeans, Histogram, Mean, Quantiles

DRAWS = np.random.default_rng(7)
TIMES = 600
AGE, CHOL = (0.0, 120.0), (0.0, 640.0)


def table_of(n: int):
    age = DRAWS.normal(54, 9.5, n).round()
    chol = np.exp(DRAWS.normal(5.4, 0.3, n)) + 0.6 * age
    chol[DRAWS.random(n) < 0.1] = np.nan
    return {"age": age, "chol": chol, "sex": DRAWS.choice(["m", "f"], n, p=[0.7, 0.3])}


def clipped(statistic, table):
    return statistic.clip.rows(torch.from_numpy(statistic.vectors(table)))[0].numpy()


def repeated(statistic, table, ratio: float):
    """Answers with fresh noise of `ratio` = sensitivity over noise of the sum, and the exact answer."""
    n = len(table["age"])
    deviation = statistic.clip.diameter / ratio / n
    mean = clipped(statistic, table).mean(0)
    draws = np.random.default_rng(1)
    answers = [
        statistic.answer(mean + deviation * draws.standard_normal(statistic.width), deviation, n) for _ in range(TIMES)
    ]
    return answers, statistic.answer(mean, 0.0, n)


def coverage(answers, exact, label: str) -> tuple[float, int]:
    """Share of intervals that hold the exact value, and number of answers that have one."""
    known = [one.values[label] for one in answers if label in one.values]
    hits = sum(one.low - 1e-9 <= exact <= one.high + 1e-9 for one in known)
    return hits / max(len(known), 1), len(known)


@pytest.mark.parametrize("n", [920, 30_000])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
@pytest.mark.parametrize(
    "statistic",
    [
        Mean("age", AGE),
        Mean("chol", CHOL),
        Histogram("age", AGE, bins=12),
        Counts("sex", ["m", "f"]),
        GroupMeans("age", AGE, "sex", ["m", "f"]),
        Correlations({"age": AGE, "chol": CHOL}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_interval_coverage_nominal(statistic, epsilon, n):
    answers, exact = repeated(statistic, table_of(n), gaussian.compute_ratio(epsilon, 1e-5))
    for label, one in exact.values.items():
        share, known = coverage(answers, one.value, label)
        if known > TIMES / 2:  # the others say that noise hides them
            assert 0.92 <= share <= (1.0 if label in ("sd", "missing", "other") else 0.99), (
                label,
                share,
            )  # an end at 0 or n covers 97.5 %


@pytest.mark.parametrize("n", [920, 30_000])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("column", ["age", "chol"])
def test_quantile_coverage_at_least_nominal(column, epsilon, n):
    table = table_of(n)
    statistic = Quantiles(column, AGE if column == "age" else CHOL, bins=120)
    answers, _ = repeated(statistic, table, gaussian.compute_ratio(epsilon, 1e-5))
    values = np.asarray(table[column])
    values = values[~np.isnan(values)]
    for label, q in (("25 %", 0.25), ("50 %", 0.5), ("75 %", 0.75)):
        share, known = coverage(answers, np.quantile(values, q, method="inverted_cdf"), label)
        assert known < TIMES / 2 or share >= 0.94, (label, share)
    share, known = coverage(answers, values.mean(), "mean")
    assert known < TIMES / 2 or share >= 0.93, share


@pytest.mark.parametrize("trust", [fp.Central(), fp.SecureAggregation(3), fp.Local(), fp.Pairwise(1, 100)], ids=str)
def test_announced_noise_is_noise_of_run(trust):
    sizes = (300, 40, 20, 100)
    tables = [{"age": DRAWS.uniform(0, 120, n)} for n in sizes]
    statistic = Mean("age", AGE)
    exact = np.concatenate([clipped(statistic, table) for table in tables]).mean(0)
    errors = list[np.ndarray]()
    with pytest.warns(UserWarning, match="secret_seed"):
        for seed in range(40):
            privacy = fp.Privacy(epsilon=1.0, delta=1e-5, trust=trust)
            found = fp.describe(tables, [statistic], privacy, secret_seed=seed)
            errors.append(-found.result.params.double().numpy().ravel() - exact)
    measured = np.concatenate(errors)  # 120 draws: a relative error of 6.5 %
    assert measured.std() == pytest.approx(found.deviation, rel=0.2)
    assert abs(measured.mean()) < 4 * found.deviation / np.sqrt(len(measured))
