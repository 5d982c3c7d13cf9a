"""The estimator: scikit-learn's own checks, its promise, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedpriv.errors import ConfigError
from fedpriv.estimators import PrivateLogisticRegression


def failing(estimator) -> dict[str, str]:
    return {}


# hardly any noise: the checks are about the interface
@parametrize_with_checks(
    [PrivateLogisticRegression(epsilon=1e4, data_norm=5.0, max_iter=20)], expected_failed_checks=failing
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def blobs(n: int = 1500):
    stream = np.random.default_rng(0)
    y = stream.integers(3, size=n)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    return centres[y] + 0.5 * stream.normal(size=(n, 2)), np.array(["a", "b", "c"])[y]


def test_it_learns_and_says_what_it_spent():
    x, y = blobs()
    model = PrivateLogisticRegression(epsilon=1.0, data_norm=4.0, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.95
    assert 0.95 < model.spent_.epsilon <= 1.0
    assert (model.spent_.unit, model.spent_.relation, model.spent_.delta) == ("sample", "replace_one", 1e-5)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
    assert cross_val_score(PrivateLogisticRegression(2.0, data_norm=4.0), x, y, cv=2).min() > 0.9


def test_without_noise_to_speak_of_it_is_logistic_regression():
    """Plain multinomial regression with the same regulariser on the same scaled rows, bias column included."""
    x, y = blobs(300)
    lam = 0.05
    ours = PrivateLogisticRegression(
        1e8, delta=0.5, data_norm=10.0, clip_norm=2.0, lam=lam, max_iter=1500, random_state=0
    ).fit(x, y)
    rows = np.hstack([x / 10, np.ones((len(x), 1))])
    reference = LogisticRegression(C=1 / (lam * len(x)), fit_intercept=False, tol=1e-10, max_iter=5000).fit(rows, y)
    np.testing.assert_allclose(ours.predict_proba(x), reference.predict_proba(rows), atol=2e-3)


def test_a_secret_seed_by_default_and_repeats_with_a_given_one():
    x, y = blobs(200)

    def fit(state):
        return PrivateLogisticRegression(0.5, data_norm=4.0, max_iter=5, random_state=state).fit(x, y).coef_

    assert not np.array_equal(fit(None), fit(None))
    np.testing.assert_array_equal(fit(3), fit(3))


def test_errors_name_the_parameter():
    x, y = blobs(50)
    with pytest.raises(ConfigError, match="epsilon"):
        PrivateLogisticRegression(epsilon=-1).fit(x, y)
    with pytest.raises(ConfigError, match="data_norm"):
        PrivateLogisticRegression(data_norm=0).fit(x, y)
    with pytest.raises(ConfigError, match="classes"):
        PrivateLogisticRegression(classes=["a", "b"]).fit(x, y)
    assert PrivateLogisticRegression(classes=["a", "b", "c", "d"], max_iter=3).fit(x, y).predict_proba(x).shape == (
        50,
        4,
    )


def test_it_stands_in_a_pipeline():
    x, y = blobs(300)
    model = make_pipeline(FunctionTransformer(lambda v: v / 4), PrivateLogisticRegression(5.0, max_iter=10))
    assert model.fit(x, y).score(x, y) > 0.9
