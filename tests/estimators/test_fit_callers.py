"""An estimator within scikit-learn's searches and pipelines: what its epsilon does not count is named."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from fedpriv.errors import PromiseWarning
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression


def rows(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).uniform(-1, 1, (n, 2))
    return x, (x[:, 0] > 0).astype(int)


def estimator(**options) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(**{"epsilon": 1.0, "classes": [0, 1], "max_iter": 2, **options})


def test_grid_search_listed_as_not_covered():
    x, y = rows()
    search = GridSearchCV(estimator(), {"lam": [0.0, 0.1]}, cv=2)
    with pytest.warns(PromiseWarning, match=r"GridSearchCV fits several times.*spent_ covers only one fit"):
        search.fit(x, y)
    assert "the other fits of GridSearchCV" in search.best_estimator_.spent_.not_covered


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("cross_val_score", lambda model, x, y: cross_val_score(model, x, y, cv=2)),
        ("BaggingClassifier", lambda model, x, y: BaggingClassifier(model, n_estimators=2, bootstrap=False).fit(x, y)),
        ("OneVsRestClassifier", lambda model, x, y: OneVsRestClassifier(model).fit(x, y)),
        ("CalibratedClassifierCV", lambda model, x, y: CalibratedClassifierCV(model, cv=2).fit(x, y)),
        ("cross_val_score", lambda model, x, y: cross_val_score(make_pipeline(model), x, y, cv=2)),
    ],
)
def test_several_fits_warn(name: str, fit):
    x, y = rows()
    with pytest.warns(PromiseWarning, match=f"{name} fits several times"):
        fit(estimator(), x, y)


@pytest.mark.parametrize("intervals", [False, True])
def test_scaler_listed_as_not_covered(intervals: bool):
    x, y = rows()
    model = estimator(epsilon=30.0, intervals=intervals)
    with pytest.warns(PromiseWarning, match=r"standardscaler \(StandardScaler\) learns from private rows"):
        make_pipeline(StandardScaler(), model).fit(x, y)
    assert model.spent_.not_covered == ("what standardscaler (StandardScaler) learned from the rows",)


def test_public_pipeline_does_not_warn():
    x, y = rows()
    model = estimator()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PromiseWarning)
        make_pipeline(FunctionTransformer(), model).fit(x, y)
    assert model.spent_.not_covered == ()


def test_non_private_search_does_not_warn():
    x, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PromiseWarning)
        GridSearchCV(estimator(epsilon=np.inf), {"lam": [0.0, 0.1]}, cv=2).fit(x, y)
