"""Intervals of private coefficients: they cover as often as they say, and count the noise."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from fedpriv.errors import ConfigError, PromiseWarning
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression

TRUE = np.array([2.0, -1.5, -0.4])  # two coefficients and the intercept
pytestmark = pytest.mark.filterwarnings("ignore::fedpriv.errors.PromiseWarning")


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    stream = np.random.default_rng(seed)
    x = stream.uniform(-1, 1, (n, 2))
    return x, (stream.random(n) < 1 / (1 + np.exp(-(x @ TRUE[:2] + TRUE[2])))).astype(int)


def fitted(n: int, seed: int, epsilon: float, **options) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(epsilon, intervals=True, classes=[0, 1], random_state=seed, **options).fit(
        *sample(n, seed)
    )


def standardised(model: PrivateLogisticRegression) -> np.ndarray:
    """Errors over standard errors, `[3]`: normal with variance 1 if the standard errors are right."""
    errors = np.append(model.coef_[0], model.intercept_) - TRUE
    return errors / np.sqrt(np.diag(model.covariance_))


def coverage(epsilon: float, n: int, fits: int) -> tuple[np.ndarray, float]:
    z = np.array([standardised(fitted(n, seed, epsilon)) for seed in range(fits)])
    return (np.abs(z) < 1.96).mean(0), float(np.square(z).mean())


def test_intervals_cover_when_noise_dominates():
    covered, variance = coverage(epsilon=1.0, n=4000, fits=12)
    assert covered.min() >= 9 / 12
    assert 0.6 < variance < 1.6


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "n"), [(1.0, 4000), (1.0, 20000), (4.0, 2000)])
def test_intervals_coverage_matches_level(epsilon: float, n: int):
    covered, variance = coverage(epsilon, n, fits=200)
    assert covered.min() > 0.95 - 4 * np.sqrt(0.05 * 0.95 / 200)
    assert 0.8 < variance < 1.3


def test_noiseless_intervals_match_maximum_likelihood():
    x, y = sample(4000, 0)
    model = fitted(4000, 0, np.inf)
    plain = LogisticRegression(C=np.inf, tol=1e-8).fit(x, y)
    errors = np.append(plain.coef_[0] - model.coef_[0], plain.intercept_ - model.intercept_)
    design = np.hstack([x, np.ones((len(x), 1))])
    chances = plain.predict_proba(x)[:, 1]
    covariance = np.linalg.inv((design * (chances * (1 - chances))[:, None]).T @ design)
    assert (np.abs(errors) < 0.2 * np.sqrt(np.diag(covariance))).all()
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), np.sqrt(np.diag(covariance)), rtol=0.05)


def test_noise_widens_intervals_within_epsilon():
    wide, narrow = (fitted(4000, 0, epsilon) for epsilon in (1.0, 8.0))
    assert (np.diag(wide.covariance_) > 2 * np.diag(narrow.covariance_)).all()
    for model, epsilon in ((wide, 1.0), (narrow, 8.0)):
        assert 0.999 * epsilon < model.spent_.epsilon <= epsilon
        assert model.spent_.accountant == "gaussian"


def test_intervals_infinite_when_noise_dominates():
    x, y = sample(4000, 0)
    x[:, 1] *= 0.01  # nearly constant
    with pytest.warns(PromiseWarning, match="so the intervals are infinite"):
        model = PrivateLogisticRegression(1.0, intervals=True, classes=[0, 1], random_state=0).fit(x, y)
    assert np.isinf(np.diag(model.covariance_)).all()
    rows = model.coefficients()
    assert all(row["low"] == -np.inf and row["odds_high"] == np.inf for row in rows)


def test_coefficients_table_names_odds_levels():
    x, y = sample(4000, 0)
    frame = pd.DataFrame(x, columns=["age", "dose"])
    model = PrivateLogisticRegression(8.0, intervals=True, classes=[0, 1], random_state=0).fit(frame, y)
    table = pd.DataFrame(model.coefficients()).set_index("name")
    assert [*table.index] == ["age", "dose", "intercept"]
    np.testing.assert_allclose(table["odds_ratio"], np.exp(table["coefficient"]))
    assert ((table["odds_low"] < table["odds_ratio"]) & (table["odds_ratio"] < table["odds_high"])).all()
    np.testing.assert_allclose((table["high"] - table["low"]) / table["standard_error"], 2 * 1.959964, rtol=1e-5)
    wider = pd.DataFrame(model.coefficients(level=0.99)).set_index("name")
    assert (wider["low"] < table["low"]).all()


def test_coefficients_refer_to_last_class():
    """`classes=["well", "ill"]` means odds of being ill, though scikit-learn sorts "ill" before "well"."""
    x, y = sample(4000, 0)
    labels = np.where(y == 1, "ill", "well")
    options = {"epsilon": 8.0, "intervals": True, "random_state": 0}
    ill = PrivateLogisticRegression(**options, classes=["well", "ill"]).fit(x, labels)
    rows = ill.coefficients(names=["age", "dose"])
    assert [row["name"] for row in rows] == ["age", "dose", "intercept"]
    assert all(row["outcome"] == "ill" and row["odds_low"] < row["odds_ratio"] < row["odds_high"] for row in rows)
    assert np.sign(rows[0]["coefficient"]) == np.sign(TRUE[0]) and rows[0]["coefficient"] == -ill.coef_[0, 0]
    well = PrivateLogisticRegression(**options, classes=["ill", "well"]).fit(x, labels).coefficients()
    assert well[0]["outcome"] == "well" and well[0]["coefficient"] < 0 < rows[0]["coefficient"]
    with pytest.raises(ConfigError, match=r"names = .*: must have one name for each of the 2 columns"):
        ill.coefficients(names=["age"])


def test_intervals_unsupported_option_raises():
    x, y = sample(200, 0)
    for options, reason in (({"clip_norm": 0.4}, "biases"), ({"class_weight": {0: 1, 1: 2}}, "equal weight")):
        with pytest.raises(ConfigError, match=reason):
            PrivateLogisticRegression(1.0, intervals=True, **options).fit(x, y)
    with pytest.raises(ConfigError, match="two classes"):
        PrivateLogisticRegression(1.0, intervals=True).fit(x, np.arange(200) % 3)
    model = PrivateLogisticRegression(1.0).fit(x, y)
    with pytest.raises(ConfigError, match="intervals=True"):
        model.coefficients()
    with pytest.raises(ConfigError, match="level"):
        fitted(4000, 0, 8.0).coefficients(level=95)


def test_interval_fits_of_other_rows_share_no_noise():
    """A fit of n rows and one of n - 1 rows with the same random_state: their difference must still have noise."""
    x, y = sample(4000, 0)
    models = [
        PrivateLogisticRegression(1.0, intervals=True, classes=[0, 1], random_state=0).fit(x[: 4000 - k], y[: 4000 - k])
        for k in (0, 1)
    ]
    assert np.abs(models[0].coef_ - models[1].coef_).max() > 0.01


def test_hopeless_intervals_raise_before_fit():
    """For any 300 rows the noise of epsilon 0.1 hides the intercept, so nothing must be spent."""
    with pytest.raises(ConfigError, match=r"epsilon.*at least \d+ rows.*plan_intervals"):
        fitted(300, 0, 0.1)


ADULT_COLUMNS = ["age", "education", "hours", "sex"]


def adult_columns(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Age, years of education, weekly hours in public ranges mapped to [-1, 1], sex as 0 or 1; income as 0 or 1."""
    lines = gzip.decompress((folder / "adult" / "adult.data.gz").read_bytes()).decode().splitlines()
    fields = [[field.strip() for field in line.split(",")] for line in lines if line.count(",") == 14]
    numbers = np.array([[float(row[index]) for index in (0, 4, 12)] for row in fields])
    low, high = np.array([17, 1, 1]), np.array([90, 16, 99])
    sex = np.array([float(row[9] == "Male") for row in fields])
    x = np.hstack([2 * (numbers - low) / (high - low) - 1, sex[:, None]])
    return x, np.array([int(row[14].startswith(">50K")) for row in fields])


class World:
    """Adult's rows with labels that are drawn from the model which fits the true labels best."""

    def __init__(self, folder: Path) -> None:
        self.x, y = adult_columns(folder)
        self.design = np.hstack([self.x, np.ones((len(self.x), 1))])
        self.truth = self.best(y)

    def best(self, y: np.ndarray) -> np.ndarray:
        """Coefficients of maximum likelihood and the intercept, `[5]`."""
        plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(self.x, y)
        return np.append(plain.coef_[0], plain.intercept_)

    def drawn(self, seed: int) -> np.ndarray:
        """Labels of the model."""
        return (np.random.default_rng(seed).random(len(self.x)) < 1 / (1 + np.exp(-self.design @ self.truth))).astype(
            int
        )

    def fitted(self, y: np.ndarray, epsilon: float, seed: int, **options) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and their standard errors, `[5]` each."""
        model = PrivateLogisticRegression(
            epsilon, intervals=True, classes=[0, 1], data_norm=2.0, random_state=seed, **options
        ).fit(self.x, y)
        return np.append(model.coef_[0], model.intercept_), np.sqrt(np.diag(model.covariance_))

    def standardised(self, epsilon: float, fits: int) -> np.ndarray:
        """Errors over standard errors, `[fits, 5]`."""
        rows = list[np.ndarray]()
        for seed in range(fits):
            found, errors = self.fitted(self.drawn(seed), epsilon, seed)
            rows.append((found - self.truth) / errors)
        return np.array(rows)


@pytest.fixture(scope="module")
def adult_world(data_root: Path) -> World:
    return World(data_root)


def test_unbalanced_columns_reach_maximum_likelihood(adult_world: World):
    """24 % of the labels are 1, and age, education and hours are correlated: thirty plain steps ended elsewhere."""
    y = adult_world.drawn(0)
    found, errors = adult_world.fitted(y, np.inf, 0)
    assert (np.abs(found - adult_world.best(y)) < 0.05 * errors).all()


def test_unbalanced_columns_intervals_cover(adult_world: World):
    z = adult_world.standardised(epsilon=8.0, fits=6)
    assert (np.abs(z) < 1.96).mean() >= 26 / 30
    assert np.square(z).mean() < 2


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [3.0, 8.0])
def test_unbalanced_columns_coverage_matches_level(adult_world: World, epsilon: float):
    z = adult_world.standardised(epsilon, fits=200)
    assert (np.abs(z) < 1.96).mean(0).min() > 0.95 - 4 * np.sqrt(0.05 * 0.95 / 200)
    assert 0.8 < np.square(z).mean() < 1.3


def test_too_few_steps_widen_intervals(adult_world: World):
    """The released Newton step shows that the pilot was far: intervals widen, and still cover."""
    y = adult_world.drawn(0)
    few, errors = adult_world.fitted(y, np.inf, 0, max_iter=6)
    best = adult_world.best(y)
    _, usual = adult_world.fitted(y, np.inf, 0)
    assert (np.abs(few - best) > 0.2 * usual).any()
    assert (np.abs(few - best) < errors).all()
    assert (errors > 2 * usual).all()


def test_plan_intervals_matches_fit(adult_world: World):
    y = adult_world.drawn(0)
    planned = PrivateLogisticRegression(3.0, data_norm=2.0).plan_intervals(
        adult_world.x[::10], y[::10], n=len(y), names=ADULT_COLUMNS
    )
    assert [row["name"] for row in planned] == [*ADULT_COLUMNS, "intercept"]
    _, errors = adult_world.fitted(y, 3.0, 0)
    np.testing.assert_allclose([row["standard_error"] for row in planned], errors, rtol=0.2)
    np.testing.assert_allclose([row["width"] for row in planned], 2 * 1.96 * errors, rtol=0.2)


def test_plan_intervals_infinite_when_noise_dominates(adult_world: World):
    """Four columns of 32 561 rows: none at epsilon 1, some at 2."""
    widths = [
        PrivateLogisticRegression(epsilon, data_norm=2.0).plan_intervals(adult_world.x, adult_world.drawn(0))[0][
            "width"
        ]
        for epsilon in (1.0, 2.0)
    ]
    assert np.isinf(widths[0]) and np.isfinite(widths[1])


def test_plan_intervals_leaves_estimator_unfitted():
    x, y = sample(100, 0)
    model = PrivateLogisticRegression(1.0, intervals=True)
    without, given = model.plan_intervals(x, n=20000), model.plan_intervals(x, y, n=20000)
    assert without[0]["standard_error"] < given[0]["standard_error"]
    assert not hasattr(model, "n_features_in_")
    for options, reason in (({"n": 0}, "private rows"), ({"level": 95}, "probability")):
        with pytest.raises(ConfigError, match=reason):
            model.plan_intervals(x, **options)
    with pytest.raises(ConfigError, match="two classes"):
        model.plan_intervals(x, np.zeros(100))


def test_summary_has_intervals_and_epsilon():
    x, y = sample(4000, 0)
    model = PrivateLogisticRegression(8.0, intervals=True, classes=[0, 1], random_state=0).fit(x, y)
    text = model.summary(0.9, names=["age", "dose"])
    lines = text.splitlines()
    assert "90 % interval" in lines[1] and [line.split()[0] for line in lines[2:5]] == ["age", "dose", "intercept"]
    row = model.coefficients(0.9)[0]
    assert f"{row['coefficient']:.3f}" in lines[2] and f"{row['low']:.3f} to {row['high']:.3f}" in lines[2]
    assert lines[-1] == str(model.spent_)
