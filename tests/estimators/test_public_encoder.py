"""The transformer that looks at no data, and pipelines that do."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, StandardScaler

from fedpriv.errors import ConfigError, DataError, PrivacyError
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression
from fedpriv.estimators.public_encoder import PublicEncoder, check_pipeline

SETTINGS = {
    "numbers": {"age": (0, 100)},
    "categories": {"smoker": ["no", "yes", "unknown"]},
    "missing": {"smoker": "unknown"},
    "indicators": ["age"],
}


def frame() -> pd.DataFrame:
    return pd.DataFrame({"age": [50.0, None, 120.0], "smoker": ["no", "yes", None], "other": [1, 2, 3]})


def test_public_encoder_matches_hand_encoding():
    encoder = PublicEncoder(**SETTINGS).fit(frame())
    assert [*encoder.get_feature_names_out()] == ["age", "smoker=no", "smoker=yes", "smoker=unknown", "age missing"]
    np.testing.assert_array_equal(encoder.transform(frame()), [[0, 1, 0, 0, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0]])
    assert encoder.data_norm_ == math.sqrt(3)


def test_public_encoder_fit_ignores_values():
    """An encoder fitted to other rows, or to rows that it cannot encode, is identical."""
    nonsense = pd.DataFrame({"age": ["old", object()], "smoker": [3, "x"], "other": [0, 0]})
    first, second = PublicEncoder(**SETTINGS).fit(frame()), PublicEncoder(**SETTINGS).fit(nonsense)
    np.testing.assert_array_equal(first.transform(frame()), second.transform(frame()))
    assert first.__dict__ == second.__dict__


@pytest.mark.parametrize("drop_first", [False, True])
def test_public_encoder_rows_bounded_by_data_norm(drop_first: bool):
    encoder = PublicEncoder(**SETTINGS, drop_first=drop_first).fit(frame())
    assert np.linalg.norm(encoder.transform(frame()), axis=1).max() <= encoder.data_norm_
    assert len(encoder.get_feature_names_out()) == encoder.transform(frame()).shape[1] == (4 if drop_first else 5)


def test_public_encoder_in_private_pipeline():
    stream = np.random.default_rng(0)
    age = stream.integers(20, 90, 4000)
    x = pd.DataFrame({"age": age, "smoker": stream.choice(["no", "yes"], 4000)})
    y = (stream.random(4000) < 1 / (1 + np.exp(-(age - 55) / 8))).astype(int)
    encoder = PublicEncoder({"age": (0, 100)}, {"smoker": ["no", "yes"]}, drop_first=True)
    model = make_pipeline(encoder, PrivateLogisticRegression(2.0, data_norm=encoder.data_norm_, classes=[0, 1]))
    check_pipeline(model)
    assert clone(model).fit(x, y).score(x, y) > 0.7


def test_public_encoder_invalid_rows_raise():
    encoder = PublicEncoder({"age": (0, 100)}).fit(frame())
    with pytest.raises(
        DataError, match=r"X, row 1: age = '' is not a number: correct it; if the value is missing, set missing\.age"
    ):
        encoder.transform(frame())
    with pytest.raises(ConfigError, match="is not a column of"):
        PublicEncoder({"weight": (0, 100)}).fit(frame())
    with pytest.raises(DataError, match="use a pandas DataFrame"):
        encoder.transform(np.zeros((2, 2)))


LEAKS = {
    "scaler": (make_pipeline(StandardScaler(), PrivateLogisticRegression()), "standardscaler (StandardScaler)"),
    "imputer": (make_pipeline(SimpleImputer(), PrivateLogisticRegression()), "simpleimputer (SimpleImputer)"),
    "categories": (make_pipeline(OneHotEncoder(), PrivateLogisticRegression()), "onehotencoder (OneHotEncoder)"),
    "in columns": (
        make_pipeline(make_column_transformer((StandardScaler(), ["age"])), PrivateLogisticRegression()),
        "columntransformer.standardscaler (StandardScaler)",
    ),
    "in a union": (FeatureUnion([("a", make_pipeline(StandardScaler()))]), "FeatureUnion.a.standardscaler"),
    "alone": (StandardScaler(), "StandardScaler"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_check_pipeline_learning_step_raises(name: str):
    pipeline, step = LEAKS[name]
    with pytest.raises(PrivacyError, match="would learn from private rows") as caught:
        check_pipeline(pipeline)
    assert step in str(caught.value) and "PublicEncoder" in str(caught.value)


def test_check_pipeline_accepts_stateless_steps():
    categories = [["a", "b"]]
    columns = make_column_transformer((OneHotEncoder(categories=categories), ["smoker"]), ("passthrough", ["age"]))
    check_pipeline(make_pipeline(columns, FunctionTransformer(np.log1p), Normalizer(), PrivateLogisticRegression()))
