"""Intervals of private coefficients: they cover as often as they say, and count the noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from fedpriv.errors import ConfigError, PromiseWarning
from fedpriv.runs.estimators import PrivateLogisticRegression

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


def test_intervals_cover_where_noise_is_larger_than_sampling():
    covered, variance = coverage(epsilon=1.0, n=4000, fits=12)
    assert covered.min() >= 9 / 12
    assert 0.6 < variance < 1.6


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "n"), [(1.0, 4000), (1.0, 20000), (4.0, 2000)])
def test_intervals_cover_as_often_as_they_say(epsilon: float, n: int):
    covered, variance = coverage(epsilon, n, fits=200)
    assert covered.min() > 0.95 - 4 * np.sqrt(0.05 * 0.95 / 200)
    assert 0.8 < variance < 1.3


def test_without_noise_the_estimate_and_its_errors_are_those_of_maximum_likelihood():
    x, y = sample(4000, 0)
    model = fitted(4000, 0, np.inf)
    plain = LogisticRegression(C=np.inf, tol=1e-8).fit(x, y)
    errors = np.append(plain.coef_[0] - model.coef_[0], plain.intercept_ - model.intercept_)
    design = np.hstack([x, np.ones((len(x), 1))])
    chances = plain.predict_proba(x)[:, 1]
    covariance = np.linalg.inv((design * (chances * (1 - chances))[:, None]).T @ design)
    assert (np.abs(errors) < 0.2 * np.sqrt(np.diag(covariance))).all()
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), np.sqrt(np.diag(covariance)), rtol=0.05)


def test_noise_widens_intervals_and_all_answers_are_paid_for():
    wide, narrow = (fitted(4000, 0, epsilon) for epsilon in (1.0, 8.0))
    assert (np.diag(wide.covariance_) > 2 * np.diag(narrow.covariance_)).all()
    for model, epsilon in ((wide, 1.0), (narrow, 8.0)):
        assert 0.999 * epsilon < model.spent_.epsilon <= epsilon
        assert model.spent_.accountant == "gaussian"


def test_where_noise_hides_the_information_there_is_no_interval():
    with pytest.warns(PromiseWarning, match="too large for intervals"):
        model = fitted(300, 0, 0.1)
    assert np.isinf(np.diag(model.covariance_)).all()
    rows = model.coefficients()
    assert all(row["low"] == -np.inf and row["odds_high"] == np.inf for row in rows)


def test_the_table_has_names_odds_and_levels():
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


def test_coefficients_are_for_the_class_that_is_named_last():
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
    with pytest.raises(ConfigError, match="one for each of the 2 columns"):
        ill.coefficients(names=["age"])


def test_what_intervals_cannot_do_is_refused():
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


def test_fits_of_other_rows_share_no_noise():
    """A fit of n rows and one of n - 1 rows with the same random_state: their difference must still have noise."""
    x, y = sample(4000, 0)
    models = [
        PrivateLogisticRegression(1.0, intervals=True, classes=[0, 1], random_state=0).fit(x[: 4000 - k], y[: 4000 - k])
        for k in (0, 1)
    ]
    assert np.abs(models[0].coef_ - models[1].coef_).max() > 0.01
