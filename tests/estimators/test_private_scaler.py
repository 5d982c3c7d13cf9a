"""The private scaler: known answers, its cost alone and in pipelines, and values that are no numbers."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpriv as fp
from fedpriv.errors import PromiseWarning
from fedpriv.estimators.fit_callers import find_fit_callers
from fedpriv.privacy.accounting import gaussian

BOUNDS = {"age": (0, 100), "chol": (0, 600)}
LOUD = {"epsilon": 2000.0, "delta": 1e-5, "random_state": 2**70}  # almost no noise, for known answers
pytestmark = pytest.mark.filterwarnings("ignore:secret_seed is set", "ignore:epsilon=2000")


def frame(n: int = 2000, seed: int = 0) -> pd.DataFrame:
    stream = np.random.default_rng(seed)
    return pd.DataFrame(
        {"age": stream.normal(50, 10, n), "chol": stream.normal(240, 50, n), "sex": ["f", "m"] * (n // 2)}
    )


def test_scales_match_means_and_deviations():
    table = frame()
    scaler = fp.PrivateScaler(BOUNDS, **LOUD).fit(table)
    for name in BOUNDS:
        centre, scale = scaler.scales_[name]
        assert centre == pytest.approx(table[name].mean(), abs=0.1)
        assert scale == pytest.approx(table[name].std(), rel=0.02)
    assert scaler.notes_ == ()
    values = scaler.transform(table)
    np.testing.assert_allclose(values.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(values.std(0), 1, atol=0.02)
    assert [*scaler.get_feature_names_out()] == ["age", "chol"]


def test_owners_share_one_release():
    parts = [frame(1000, 1), frame(600, 2)]
    scaler = fp.PrivateScaler(BOUNDS, trust=fp.Central(), **LOUD).fit(parts)
    whole = pd.concat(parts)
    assert scaler.scales_["age"][0] == pytest.approx(whole["age"].mean(), abs=0.1)
    assert len(scaler.spent_.per_client) == 2
    first, second = scaler.transform(parts)
    assert first.shape == (1000, 2) and second.shape == (600, 2)
    np.testing.assert_array_equal(first, scaler.transform(parts[0]))


def test_frames_dictionaries_and_arrays_give_same_scales():
    table = frame()
    plain = {name: table[name].tolist() for name in BOUNDS}
    settings = {"epsilon": 1.0, "random_state": 7}
    first = fp.PrivateScaler(BOUNDS, **settings).fit(table)
    second = fp.PrivateScaler(BOUNDS, **settings).fit(plain)
    assert first.scales_ == second.scales_
    array = table[["age", "chol"]].to_numpy()
    numbered = fp.PrivateScaler({0: (0, 100), 1: (0, 600)}, **LOUD).fit(array)
    assert numbered.transform(array).mean() == pytest.approx(0, abs=0.02)


def test_odd_values_raise_nothing_and_become_bounds_or_mean():
    """No error may depend on a value: text and gaps are missing, other values count as the nearest end."""
    table = {"age": [20.0, 40.0, None, "x", math.nan, math.inf, -5.0, 1e9] * 250}
    scaler = fp.PrivateScaler({"age": (0, 100)}, **LOUD).fit(table)
    known = np.array([20, 40, 100, 0, 100])
    centre, scale = scaler.scales_["age"]
    assert (centre, scale) == (pytest.approx(known.mean(), abs=0.3), pytest.approx(known.std(), rel=0.02))
    values = scaler.transform(table)[:8, 0]
    np.testing.assert_array_equal(values[2:5], 0)
    assert values[5] == values[7] == (100 - centre) / scale and values[6] == -centre / scale


@pytest.mark.parametrize("column", [[None] * 500, ["text"] * 500])
def test_column_without_values_keeps_public_range(column: list[object]):
    scaler = fp.PrivateScaler({"age": (0, 100)}, epsilon=1.0, random_state=1).fit({"age": column})
    assert scaler.scales_ == {"age": (50, 50)}
    assert "the noise hides the mean" in scaler.notes_[0]
    np.testing.assert_array_equal(scaler.transform({"age": column}), 0)


@pytest.mark.parametrize("seed", range(8))
def test_constant_column_stays_small(seed: int):
    """A deviation of 0 is not divided by: the scale is at least the likely error of the deviation."""
    table = {"age": [30.0] * 2000}
    scaler = fp.PrivateScaler({"age": (0, 100)}, epsilon=0.3, random_state=seed).fit(table)
    assert abs(scaler.transform(table)).max() < 1


def test_two_hidden_columns_stay_finite():
    scaler = fp.PrivateScaler(BOUNDS, epsilon=0.01, random_state=0).fit(frame(20))
    assert np.isfinite(scaler.transform(frame(20))).all()


def test_neighbours_differ_by_at_most_the_sensitivity():
    """The worst change of one row moves the released vector by the diameter that the cost is computed for."""
    scaler = fp.PrivateScaler(BOUNDS, epsilon=1.0, random_state=2**70)
    tables = [{"age": [value] * 1 + [50.0] * 99, "chol": [6 * value] + [300.0] * 99} for value in (0.0, 100.0)]
    record = scaler.fit(tables[0]).result_.charged[0]
    assert record.mechanism == "gaussian"
    ratio = 1 / record.noise_multiplier
    assert gaussian.compute_epsilon(ratio, 1e-5) <= 1.0001
    means = [fp.statistics.Mean(name, bounds) for name, bounds in BOUNDS.items()]
    vectors = [np.concatenate([one.vectors(table) / math.sqrt(2) for one in means], 1) for table in tables]
    assert np.linalg.norm(vectors[0] - vectors[1], axis=1).max() <= 2 + 1e-9


def test_saved_scaler_transforms_alike(tmp_path):
    scaler = fp.PrivateScaler(BOUNDS, epsilon=1.0, random_state=0).fit(frame())
    scaler.save(tmp_path / "scaler.json")
    loaded = fp.PrivateScaler.load(tmp_path / "scaler.json")
    np.testing.assert_array_equal(loaded.transform(frame()), scaler.transform(frame()))
    assert loaded.spent_ == scaler.spent_ and loaded.notes_ == scaler.notes_
    (tmp_path / "scaler.json").write_text("{}")
    with pytest.raises(fp.FedprivError, match="is not a file of PrivateScaler"):
        fp.PrivateScaler.load(tmp_path / "scaler.json")


def test_budget_charged_once_per_fit(tmp_path):
    budget = fp.Budget.create(tmp_path / "b.jsonl", epsilon=1, delta=1e-5)
    scaler = fp.PrivateScaler(BOUNDS, epsilon=0.6, budget=budget.path).fit(frame())
    assert budget.balance().spent.epsilon == pytest.approx(scaler.spent_.epsilon, rel=1e-3)
    with pytest.raises(fp.PrivacyError):
        fp.PrivateScaler(BOUNDS, epsilon=0.9, budget=budget.path).fit(frame())


@pytest.mark.parametrize(
    ("bounds", "table", "text"),
    [
        ({}, frame(20), "at least one column"),
        ({"age": (5, 5)}, frame(20), "public knowledge"),
        ({"agee": (0, 100)}, frame(20), "did you mean .age"),
        ({"age": (0, 100)}, [], "empty list"),
        ({"age": (0, 100)}, [[1.0], [2.0]], "use a DataFrame"),
        ({7: (0, 100)}, np.zeros((20, 2)), "is not a column of X"),
        ({"age": (0, 100)}, {"age": []}, "no rows"),
    ],
)
def test_unusable_settings_and_tables_raise(bounds, table, text):
    with pytest.raises(fp.FedprivError, match=text):
        fp.PrivateScaler(bounds).fit(table)


# --- pipelines --------------------------------------------------------------------------------------------------------


def labelled(n: int = 2000) -> tuple[pd.DataFrame, np.ndarray]:
    table = frame(n)
    return table, (table["age"] > 50).to_numpy().astype(int)


def regression(**options) -> fp.PrivateLogisticRegression:
    return fp.PrivateLogisticRegression(**{"classes": [0, 1], "max_iter": 5, "data_norm": 2.0, **options})


def pipelines() -> dict[str, object]:
    scaler = fp.PrivateScaler(BOUNDS, epsilon=0.5)
    columns = make_column_transformer(
        (scaler, ["age", "chol"]), (fp.PublicEncoder(categories={"sex": ["f", "m"]}), ["sex"])
    )
    return {
        "plain": make_pipeline(scaler, regression()),
        "in columns": make_pipeline(columns, regression()),
        "in a union": make_pipeline(FeatureUnion([("a", scaler)]), regression()),
        "nested": make_pipeline(make_pipeline(scaler), make_pipeline(regression())),
    }


@pytest.mark.parametrize("name", pipelines())
@pytest.mark.parametrize("intervals", [False, True])
def test_pipeline_states_joint_epsilon(name: str, intervals: bool):
    x, y = labelled()
    pipeline = pipelines()[name]
    fp.check_pipeline(pipeline)
    last = pipeline[-1] if name != "nested" else pipeline[-1][-1]
    last.set_params(intervals=intervals, epsilon=3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PromiseWarning)
        warnings.filterwarnings("ignore", "the noise hides the coefficients|in 1 round", PromiseWarning)
        pipeline.fit(x, y)
    alone = regression(intervals=intervals, epsilon=3.0)
    joint = gaussian.compute_epsilon(
        math.hypot(gaussian.compute_ratio(0.5, 1e-5), gaussian.compute_ratio(3, 1e-5)), 1e-5
    )
    assert alone.epsilon < last.spent_.epsilon == pytest.approx(joint, rel=1e-3)
    assert last.spent_.not_covered == ()


def test_two_scalers_are_both_charged():
    x, y = labelled()
    pipeline = make_pipeline(
        FeatureUnion(
            [("a", fp.PrivateScaler({"age": (0, 100)}, 0.5)), ("b", fp.PrivateScaler({"chol": (0, 600)}, 0.5))]
        ),
        regression(epsilon=0.5),
    ).fit(x, y)
    ratio = gaussian.compute_ratio(0.5, 1e-5) * math.sqrt(3)
    assert pipeline[-1].spent_.epsilon == pytest.approx(gaussian.compute_epsilon(ratio, 1e-5), rel=1e-3)


def test_refit_charges_the_new_fit_alone():
    x, y = labelled()
    pipeline = make_pipeline(fp.PrivateScaler(BOUNDS, 0.5), regression()).fit(x, y)
    first = pipeline[-1].spent_.epsilon
    assert pipeline.fit(x, y)[-1].spent_.epsilon == first


def test_learning_step_beside_a_private_one_still_raises():
    scaler = fp.PrivateScaler({0: (-3, 3)})
    for pipeline, step in (
        (make_pipeline(StandardScaler(), scaler, regression()), "standardscaler (StandardScaler)"),
        (make_pipeline(make_column_transformer((scaler, [0]), remainder=StandardScaler()), regression()), "remainder"),
    ):
        with pytest.raises(fp.PrivacyError, match="would learn from private rows") as caught:
            fp.check_pipeline(pipeline)
        assert step in str(caught.value) and "PrivateScaler" in str(caught.value)


def test_scaler_lists_what_earlier_steps_learned():
    x = np.random.default_rng(0).normal(size=(200, 1))
    with pytest.warns(PromiseWarning, match="learns from private rows"):
        whole = make_pipeline(StandardScaler(), fp.PrivateScaler({0: (-3, 3)}, 1.0), regression())
        whole.fit(x, (x[:, 0] > 0).astype(int))
    learned = ("what standardscaler (StandardScaler) learned from the rows",)
    assert whole[1].spent_.not_covered == whole[2].spent_.not_covered == learned


def test_cross_validation_states_the_cost_of_both():
    x, y = labelled(400)
    pipeline = make_pipeline(fp.PrivateScaler(BOUNDS, 1.0), regression())
    joint = gaussian.compute_epsilon(gaussian.compute_ratio(1, 1e-5) * math.sqrt(2), 1e-5)
    with pytest.warns(PromiseWarning, match=rf"each fit spends epsilon={math.floor(100 * joint) / 100}"):
        cross_val_score(pipeline, x, y, cv=2)


def test_unfitted_private_step_has_unknown_cost():
    """A step without its run would go uncounted: nothing is fitted then."""
    x, y = labelled(400)
    scaler = fp.PrivateScaler(BOUNDS, 1.0).fit(x)
    del scaler.result_  # as in a loaded scaler

    class Kept(fp.PrivateScaler):
        def fit(self, X, y=None):
            return self

        def __sklearn_clone__(self):
            return self

    kept = Kept(BOUNDS)
    kept.__dict__.update(scaler.__dict__)
    with pytest.raises(fp.PrivacyError, match="the cost of the pipeline step kept is unknown"):
        make_pipeline(kept, regression()).fit(x, y)


def test_clone_keeps_settings():
    scaler = clone(fp.PrivateScaler(BOUNDS, 0.7, trust=fp.Central()))
    assert scaler.get_params()["epsilon"] == 0.7 and scaler.trust == fp.Central()
    assert find_fit_callers().several is None


# --- clients ----------------------------------------------------------------------------------------------------------


def test_encoder_uses_private_scales():
    table = frame().assign(age=lambda one: one["age"].where(one.index % 5 != 0))
    scaler = fp.PrivateScaler(BOUNDS, **LOUD).fit(table)
    settings = {"label": "sex", "classes": ["f", "m"], "numbers": BOUNDS, "scales": scaler.scales_}
    inputs, _ = fp.data.TableEncoder(**settings).dataset(table).tensors
    np.testing.assert_allclose(inputs[:, :2], scaler.transform(table), atol=1e-5)
    filled, _ = fp.data.TableEncoder(**settings, missing={"age": 70}).dataset(table).tensors
    centre, scale = scaler.scales_["age"]
    assert float(filled[0, 0]) == pytest.approx((70 - centre) / scale, rel=1e-5)


@pytest.mark.parametrize(
    ("scales", "text"),
    [
        ({"age": (50, 0)}, "a scale above 0"),
        ({"agee": (50, 1)}, "did you mean .age"),
        ({"sex": (0, 1)}, "besides the label"),
    ],
)
def test_encoder_refuses_impossible_scales(scales, text):
    with pytest.raises(fp.ConfigError, match=text):
        fp.data.TableEncoder("sex", classes=["f", "m"], numbers=BOUNDS, scales=scales)


def test_owners_train_on_standardised_tables():
    from torch import nn

    tables = [frame(300, 1), frame(200, 2)]
    scaler = fp.PrivateScaler(BOUNDS, epsilon=0.5, trust=fp.Central()).fit(tables)
    encoder = fp.data.TableEncoder("sex", classes=["f", "m"], numbers=BOUNDS, scales=scaler.scales_)
    clients = fp.make_clients(nn.Linear(3, 2), nn.CrossEntropyLoss(), [encoder.dataset(table) for table in tables])
    privacy = fp.Privacy(epsilon=1.0, delta=1e-5, trust=fp.Central())
    result = fp.train(clients, fp.gradient_descent(0.1), privacy, rounds=2)
    joint = fp.total([scaler.result_, result])
    assert 1.0 < joint.epsilon < 1.5 and math.isfinite(joint.epsilon)
