"""The estimator: scikit-learn's own checks, its promise, and what it learns."""

from __future__ import annotations

import gzip
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedpriv.errors import ConfigError, DataError, PromiseWarning
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression


def failing(estimator) -> dict[str, str]:
    above = "weights above 1 are refused: they would widen what a row can do"
    return {
        "check_sample_weights_list": above,
        "check_sample_weights_not_overwritten": above,
        "check_sample_weight_equivalence_on_dense_data": above,
        "check_sample_weight_equivalence_on_sparse_data": above,
        "check_all_zero_sample_weights_error": "an error would tell that all private weights are 0",
    }


# hardly any noise: the checks are about the interface
@parametrize_with_checks(
    [PrivateLogisticRegression(epsilon=1e4, data_norm=5.0, max_iter=20)], expected_failed_checks=failing
)
def test_estimator_passes_sklearn_checks(estimator, check):
    check(estimator)


def blobs(n: int = 1500):
    stream = np.random.default_rng(0)
    y = stream.integers(3, size=n)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    return centres[y] + 0.5 * stream.normal(size=(n, 2)), np.array(["a", "b", "c"])[y]


def test_estimator_learns_and_reports_epsilon():
    x, y = blobs()
    model = PrivateLogisticRegression(epsilon=1.0, data_norm=4.0, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.95
    assert 0.95 < model.spent_.epsilon <= 1.0
    assert (model.spent_.unit, model.spent_.relation, model.spent_.delta) == ("sample", "replace_one", 1e-5)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
    assert cross_val_score(PrivateLogisticRegression(2.0, data_norm=4.0), x, y, cv=2).min() > 0.9


def test_low_noise_estimator_matches_sklearn():
    """Plain multinomial regression with the same regulariser on the same scaled rows, bias column included."""
    x, y = blobs(300)
    lam = 0.05
    ours = PrivateLogisticRegression(
        1e8, delta=0.5, data_norm=10.0, clip_norm=2.0, lam=lam, max_iter=300, random_state=0
    ).fit(x, y)
    rows = np.hstack([x / 10, np.full((len(x), 1), 0.25)])
    reference = LogisticRegression(C=1 / (lam * len(x)), fit_intercept=False, tol=1e-10, max_iter=5000).fit(rows, y)
    np.testing.assert_allclose(ours.predict_proba(x), reference.predict_proba(rows), atol=2e-3)


def test_random_state_reproduces_fit():
    x, y = blobs(200)

    def fit(state):
        return PrivateLogisticRegression(0.5, data_norm=4.0, max_iter=5, random_state=state).fit(x, y).coef_

    assert not np.array_equal(fit(None), fit(None))
    np.testing.assert_array_equal(fit(3), fit(3))


def test_different_fits_with_one_seed_share_no_noise():
    """Folds of a cross-validation share a seed; the difference of two query results must keep its noise."""
    x, y = blobs(200)
    other = x.copy()
    other[7] *= -1

    def fit(rows, **options):
        return PrivateLogisticRegression(**{"epsilon": 0.1, "max_iter": 1, "random_state": 3, **options}).fit(rows, y)

    one = fit(x)
    noise = np.abs(one.coef_).mean()  # a hundred times what one of 200 rows can do
    assert np.abs(fit(other).coef_ - one.coef_).mean() > 0.2 * noise
    # the same noise at two levels: their right combination would be the exact gradient
    twice = fit(x, epsilon=0.2)
    assert abs(np.corrcoef(one.coef_.ravel(), twice.coef_.ravel())[0, 1]) < 0.99


def test_estimator_errors_name_parameter():
    x, y = blobs(50)
    for options in ({"data_norm": 4.0}, {}, {"intervals": True}):
        with pytest.raises(ConfigError, match="epsilon"):
            PrivateLogisticRegression(epsilon=-1, **options).fit(x, y)
    with pytest.raises(ConfigError, match="classes"):
        PrivateLogisticRegression(data_norm=4.0, classes=["a", "b"]).fit(x, y)
    named = PrivateLogisticRegression(data_norm=4.0, classes=["a", "b", "c", "d"], max_iter=3).fit(x, y)
    assert named.predict_proba(x).shape == (50, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lam", -1.0),
        ("lam", np.nan),
        ("max_iter", 0),
        ("max_iter", 2.5),
        ("lam", np.inf),
        ("class_weight", "balanced"),
        ("class_weight", {"a": 0.0}),
        ("class_weight", {"z": 1.0}),
        ("random_state", np.random.RandomState(0)),
        ("random_state", "secret"),
    ],
)
def test_estimator_invalid_setting_raises(field, value):
    x, y = blobs(50)
    with pytest.raises(ConfigError, match=f"^{field} = "):
        PrivateLogisticRegression(data_norm=4.0, **{field: value}).fit(x, y)


def test_zero_lam_is_unregularized():
    x, y = blobs(50)
    none, little = (
        PrivateLogisticRegression(1e8, delta=0.5, data_norm=4.0, lam=lam, max_iter=9).fit(x, y).coef_
        for lam in (0, 1e-9)
    )
    np.testing.assert_allclose(none, little, rtol=1e-2)


def test_default_data_norm_from_column_count():
    x, y = blobs(50)
    for scale in (0.01, 1.0, 100.0):
        default = PrivateLogisticRegression(1e10, delta=0.5, max_iter=3).fit(scale * x, y)
        explicit = PrivateLogisticRegression(1e10, delta=0.5, data_norm=np.sqrt(x.shape[1]), max_iter=3).fit(
            scale * x, y
        )
        np.testing.assert_allclose(default.coef_, explicit.coef_, rtol=1e-2)


@pytest.mark.parametrize("bound", [0, -1.0, np.nan, np.inf])
def test_invalid_data_norm_raises(bound):
    x, y = blobs(50)
    with pytest.raises(ConfigError, match=r"data_norm.*from public knowledge"):
        PrivateLogisticRegression(epsilon=1.0, data_norm=bound).fit(x, y)


def test_estimator_learns_ill_conditioned_table():
    """Short rows beside the constant, most of one class: fifty plain steps of 1 / L predict the larger class only."""
    stream = np.random.default_rng(0)
    x = stream.integers(2, size=(8000, 10)).astype(float)
    y = (x @ np.linspace(-2, 3, 10) + 0.5 * stream.normal(size=len(x))) > 4.5
    model = PrivateLogisticRegression(epsilon=1.0, data_norm=np.sqrt(10), random_state=0).fit(x, y)
    majority = 1 - y.mean()
    assert 0.7 < majority < 0.85
    assert model.score(x, y) > majority + 0.05


def test_estimator_on_adult_mixed_columns(data_root):
    """Scales and categories are public, rows are sparse; 85 % is without privacy, 76 % the larger class."""
    (x, y), (x_test, y_test) = (adult(data_root / "adult" / name) for name in ("adult.data.gz", "adult.test.gz"))
    scale = FunctionTransformer(lambda v: np.clip(v.astype(float) / [100, 1.5e6, 16, 1e5, 5e3, 100], 0, 1))
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((scale, NUMBERS), (encoder, [i for i in range(14) if i not in NUMBERS]))
    model = make_pipeline(columns, PrivateLogisticRegression(epsilon=1.0, data_norm=4.0, random_state=0)).fit(x, y)
    assert model[-1].spent_.epsilon <= 1.0
    assert model.score(x_test, y_test) > 0.835


NUMBERS = [0, 2, 4, 10, 11, 12]


def adult(path):
    """Rows of numbers and words `[n, 14]`, and labels."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    rows = [[field.strip() for field in line.split(",")] for line in lines if line.count(",") == 14]
    table = np.array(rows, dtype=object)
    return table[:, :14], np.array([label.rstrip(".") for label in table[:, 14]])


def test_estimator_in_pipeline():
    x, y = blobs(300)
    model = make_pipeline(FunctionTransformer(lambda v: v / 4), PrivateLogisticRegression(5.0, data_norm=1.0))
    assert model.fit(x, y).score(x, y) > 0.9


def unbalanced(n: int = 12000):
    """22 sparse columns in [-1, 1], most rows far shorter than sqrt(22), one label in ten positive; train and test."""
    stream = np.random.default_rng(0)
    hot = np.eye(10)[stream.integers(10, size=2 * n)]
    measured = np.clip(stream.normal(size=(2 * n, 4)) @ stream.normal(size=(4, 12)) * 0.2, -1, 1)
    x = np.hstack([hot, measured * (stream.random((2 * n, 12)) < 0.7)])
    scores = x @ np.concatenate([np.linspace(-2, 2, 10), stream.normal(size=12) * 4]) + stream.logistic(size=2 * n)
    y = scores > np.quantile(scores, 0.9)
    return x[:n], y[:n], x[n:], y[n:]


def test_default_estimator_improves_with_epsilon():
    x, y, x_test, y_test = unbalanced()
    majority = 1 - y_test.mean()
    best = LogisticRegression(C=1e6, max_iter=2000).fit(x, y).score(x_test, y_test)

    def score(epsilon):
        return PrivateLogisticRegression(epsilon, random_state=0).fit(x, y).score(x_test, y_test)

    little, much = score(0.3), score(3.0)
    assert majority - 0.01 < little < much
    assert much > majority + 0.7 * (best - majority)
    assert score(np.inf) > majority + 0.9 * (best - majority)


def test_default_estimator_on_digits():
    x, y = load_digits(return_X_y=True)
    scores = [PrivateLogisticRegression(e, random_state=0).fit(x[:1400] / 16, y[:1400]) for e in (1.0, 3.0)]
    one, three = (model.score(x[1400:] / 16, y[1400:]) for model in scores)
    assert one > 0.68
    assert three > 0.76


def test_number_of_steps_independent_of_data():
    x, y = blobs(300)
    other = np.roll(x, 1, axis=0) * 3

    def steps(rows, **options):
        return PrivateLogisticRegression(**options).fit(rows, y).n_iter_

    assert steps(x) == steps(other)
    assert steps(x) < steps(x, epsilon=3.0) < steps(x, epsilon=30.0) < steps(x, epsilon=np.inf)
    assert steps(x, max_iter=7) == 7


def test_infinite_epsilon_reported_not_private():
    x, y = blobs(300)
    model = PrivateLogisticRegression(epsilon=np.inf).fit(x, y)
    assert model.score(x, y) > 0.97
    assert model.spent_.epsilon == np.inf
    assert "not private" in str(model.spent_)
    np.testing.assert_array_equal(model.coef_, PrivateLogisticRegression(epsilon=np.inf).fit(x, y).coef_)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.csc_array, sparse.coo_array])
def test_sparse_and_dense_rows_agree(kind):
    x, y, x_test, _ = unbalanced(400)
    x[3] *= 100  # longer than the bound
    x[4] = 0
    # without noise: that of rows which differ in their last bit is another
    dense, thin = (PrivateLogisticRegression(np.inf, max_iter=9).fit(rows, y) for rows in (x, kind(x)))
    np.testing.assert_allclose(dense.coef_, thin.coef_, rtol=1e-9)
    np.testing.assert_allclose(dense.predict_proba(x_test), thin.predict_proba(kind(x_test)), rtol=1e-9)


def test_weighted_two_class_fit_matches_sklearn():
    """On the same scaled rows and constant; a row's weight times its class's."""
    x, y, _, _ = unbalanced(600)
    weights, lam = np.random.default_rng(1).random(600), 0.01
    ours = PrivateLogisticRegression(np.inf, lam=lam, class_weight={False: 3, True: 9}).fit(x, y, weights)
    rows = np.hstack([x / np.sqrt(22), np.full((len(x), 1), 0.25)])
    reference = LogisticRegression(C=1 / (lam * 600), fit_intercept=False, class_weight={False: 1 / 3, True: 1.0})
    reference.set_params(tol=1e-10, max_iter=5000).fit(rows, y, weights)
    assert ours.coef_.shape == (1, 22)
    assert ours.intercept_.shape == (1,)
    np.testing.assert_allclose(ours.predict_proba(x), reference.predict_proba(rows), atol=1e-6)


@pytest.mark.parametrize("labels", [2, 3])
def test_step_sensitivity_bounded_by_clip(labels):
    """Its values, label and weight replaced by others, clipped or not; one step from 0 shows the mean gradient."""
    n, smoothness = 40, 1.0625 / (4 if labels == 2 else 2)
    stream = np.random.default_rng(0)
    x, y, w = stream.normal(size=(n, 3)), np.arange(n) % labels, stream.random(n)
    for clip in (0.4, 2.0):
        largest = 0.0
        for row, label, weight in [(1e9 * np.ones(3), 1, 1.0), (np.zeros(3), 1, 1.0), (-1e9 * np.ones(3), 0, 1.0)]:
            steps = []
            for replaced in (False, True):
                a, b, c = x.copy(), y.copy(), w.copy()
                a[0], b[0], c[0] = (row, label, weight) if replaced else (1e9 * np.ones(3), 0, 1.0)
                settings = {"data_norm": 2.0, "max_iter": 1, "clip_norm": clip, "class_weight": {0: 5.0, 1: 4.0}}
                # the last bits of noise are far below the bound
                model = PrivateLogisticRegression(1e14, delta=0.5, random_state=0, **settings).fit(a, b, c)
                steps.append(np.hstack([2 * model.coef_, 4 * model.intercept_[:, None]]))
            largest = max(largest, np.linalg.norm(steps[1] - steps[0]) * smoothness * n)
        assert 0.4 < largest <= 2 * clip * (1 + 1e-4)


@pytest.mark.parametrize("weight", [1.01, -0.1, np.nan, np.inf])
def test_invalid_sample_weight_raises(weight):
    x, y = blobs(50)
    weights = np.full(50, 0.5)
    weights[7] = weight
    with pytest.raises(ValueError, match="sample_weight"):
        PrivateLogisticRegression(data_norm=4.0).fit(x, y, weights)


def test_balanced_class_weight_raises_with_fix():
    x, y = blobs(50)
    with pytest.raises(ConfigError, match=r"must be a mapping of labels to public weights"):
        PrivateLogisticRegression(data_norm=4.0, class_weight="balanced").fit(x, y)


def test_text_column_suggests_public_encoder():
    table = pd.DataFrame({"age": [1.0, 2.0], "sex": ["f", "m"]})
    with pytest.raises(DataError, match=r"column sex has type .*fedpriv\.PublicEncoder"):
        PrivateLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(table, [0, 1])


@pytest.mark.parametrize(
    ("word", "write"), [("C", "write lam=0.01"), ("eps", "write epsilon=1"), ("solver", "leave it")]
)
def test_sklearn_argument_suggests_replacement(word: str, write: str):
    with pytest.raises(ConfigError, match=write):
        PrivateLogisticRegression(**{word: 1})


@pytest.mark.parametrize("intervals", [False, True])
def test_unscaled_columns_warn(intervals: bool):
    stream = np.random.default_rng(0)
    x = stream.uniform(20, 80, (3000, 2))
    y = (x[:, 0] > 50).astype(int)
    model = PrivateLogisticRegression(4.0, classes=[0, 1], max_iter=5, intervals=intervals)
    with pytest.warns(PromiseWarning, match=r"most rows have an l2 norm above 1.41"):
        model.fit(x, y)
    assert 0.99 * 4 < model.spent_.epsilon <= 4
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="most rows")
        model.fit(x / 80, y)
        PrivateLogisticRegression(4.0, classes=[0, 1], max_iter=5, data_norm=1.0, intervals=intervals).fit(x, y)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_values_suggest_public_encoder(value: float) -> None:
    """The error of scikit-learn suggests an imputer, which computes its values from the data without noise."""
    rows = np.zeros((40, 2))
    labels = np.arange(40) % 2
    fitted = PrivateLogisticRegression(epsilon=1.0).fit(rows, labels)
    rows[3, 1] = value
    for call in (lambda: PrivateLogisticRegression(epsilon=1.0).fit(rows, labels), lambda: fitted.predict(rows)):
        with pytest.raises(DataError, match=r"replace such values by public ones, e\.g\. with fedpriv\.PublicEncoder"):
            call()
